"""A job's streams as the roles use them: ledger, trajectories, progress and announcements over a message store."""
