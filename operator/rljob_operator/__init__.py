"""Level-triggered reconcile of an RLJob: observe, desired, plan, apply, status."""
