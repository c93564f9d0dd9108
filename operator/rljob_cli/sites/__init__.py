"""`rljob site`: other clusters join a hub, and one that is lost is said to be."""
