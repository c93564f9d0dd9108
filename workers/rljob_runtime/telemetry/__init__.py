"""Metrics of the roles for Prometheus: what there is (`catalogue`), how it is recorded, how it is served."""
