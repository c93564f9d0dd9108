"""The four roles of a job, coordinator, rollout, reward and trainer, each the shell around decisions of the core."""
