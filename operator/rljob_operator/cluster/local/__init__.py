"""The cluster made of local processes, against which `rljob run` reconciles."""
