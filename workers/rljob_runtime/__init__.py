"""The job's processes: one module per role (coordinator, rollout, reward, trainer) and per adapter."""
