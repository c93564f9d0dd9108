"""`rljob compare`: runs beside each other, by what is on their disks; nothing is written into a run."""
