"""The Helm chart `charts/rljob`, which `rljob chart` makes of `manifests/base`."""
