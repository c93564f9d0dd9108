"""`rljob patch`: changes a job in its run's folder, and reports when the running job has taken the change over."""
