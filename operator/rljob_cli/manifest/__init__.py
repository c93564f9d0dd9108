"""An RLJob as a file: read, changed by `--set`, compared, and what is wrong in it as advice."""
