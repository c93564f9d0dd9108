"""The trainer backends: Torch, FSDP, DeepSpeed, Emulated, and the base for backends in NumPy."""
