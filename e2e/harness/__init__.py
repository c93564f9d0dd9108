"""A real Kubernetes for tests: an API server in 3 s, real nodes in 10, on one machine, without Docker or a registry.

`ControlPlane` and `Cluster` are the two things to start; `fixtures` are pytest's; `python -m e2e.harness --help` is
for people. What is built and made once is kept in the cache (`cache.py`).
"""
