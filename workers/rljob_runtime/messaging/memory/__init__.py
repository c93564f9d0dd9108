"""The message store in one process, for simulations and tests under a virtual clock."""
