"""Training: trainer backends by name, losses, packing, checkpoints, and the gang of ranks."""
