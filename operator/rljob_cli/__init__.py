"""The `rljob` command: composes operator and workers, imported by nothing."""
