"""`rljob run`: runs a job here, shows its progress and writes its results."""
