"""Backups of jobs: `rljob backup` and `rljob restore`. `docs/backup.md` has the format, and why a backup is consistent.

| module | task |
|---|---|
| `take` | copies a job, running or not, into a backup |
| `restore` | makes a run's folder of a backup |
| `restore_on_cluster` | fills a job on a cluster that has never run |
| `contents` | puts what a backup holds where a job keeps it |
| `sources` | the job of a run's folder, or on a cluster |
| `ledger_copy` | reads the ledger |
| `files` | which weights, checkpoints and lines of the trainer's log are copied |
| `messages` | a stream's messages as files, and back with the same sequences |
| `copied` | the files that are in a backup so far |
| `index` | the index, which is written last |
| `place` | a folder or an object store, which holds the files |
"""
