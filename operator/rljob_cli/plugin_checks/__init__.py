"""`rljob check-engine`, `check-backend` and the like: whether a plug-in fulfils its contract."""
