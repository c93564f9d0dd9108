"""`kubectl rljob`: looks at jobs on a cluster, and changes them, with a person's own kubeconfig.

| part | does |
|---|---|
| `cluster` | requests to the API server, with errors that say which right or object is missing |
| `port_forward`, `viewer` | the way to a job's NATS server through the API server, and a viewer's credentials for it |
| `mirror` | a temporary run folder that follows a job, so that what reads a run's folder reads a job on a cluster |
| `describe` | the chain from a condition to its cause; no clock and no I/O |
| `commands`, `stream_commands` | the commands |
"""
