"""Turns micro-batches into tensors: padded rows, or packed groups whose responses share their prompt."""
