"""The `Cluster` port over a Kubernetes API server: login, requests, watches, and the cache that the watches fill."""
