"""The cluster over a Kubernetes API server: client, watches, the cache that they fill."""
