"""`rljob samples`: what a model answered, why it was scored so, and what became of it."""
