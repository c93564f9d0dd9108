"""The running operator: kopf handlers, work queue, controller, and one reconcile of one job at a time."""
