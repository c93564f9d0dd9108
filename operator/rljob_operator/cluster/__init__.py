"""What reconciling needs of a cluster (`port`), over the Kubernetes API (`kube`) and over local processes (`local`)."""
