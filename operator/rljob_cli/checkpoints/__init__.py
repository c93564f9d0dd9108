"""`rljob export` and `rljob eval`: what becomes of a checkpoint after training."""
