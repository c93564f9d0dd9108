"""A worker as an operating-system process: it ends with its parent, syncs its files, follows its configuration."""
