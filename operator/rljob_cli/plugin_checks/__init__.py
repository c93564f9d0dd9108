"""`rljob check-engine`, `check-backend`, `check-loss`, `check-reward`: whether a plug-in fulfils its contract."""
