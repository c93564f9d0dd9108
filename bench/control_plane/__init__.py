"""The operator at scale: a real control plane, pretend nodes and pods (KWOK), up to thousands of RLJobs.

| phase | measured |
|---|---|
| start | the import of the operator; the time from its process' start to the first reconcile |
| small | 100 jobs of 10 pods, beside KubeRay's figures for as many clusters and pods |
| scale | 1,000 jobs of 10 pods: children, readiness, writes, memory |
| change | the time to act on a changed job while other jobs are created |
| idle | requests, CPU and memory of 1,000 jobs while nothing changes |
| restart | a new operator process that finds 1,000 jobs |

The operator runs in its own process with the rights of its manifest. Times are read from the API server's audit log and
from the statuses of jobs, so that the measurement adds no load.
"""
