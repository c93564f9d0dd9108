"""The manifests of what an RLJob owns, made from its spec and the cluster's defaults."""
