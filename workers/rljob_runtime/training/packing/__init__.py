"""Micro-batches as tensors: padded rows, or packed groups whose responses share their prompt."""
