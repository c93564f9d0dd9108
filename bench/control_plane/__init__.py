"""The operator at scale: a real control plane, pretend nodes and pods (KWOK), up to thousands of RLJobs.

| phase | what |
|---|---|
| start | the operator's import, and its process' start until the first reconcile |
| small | 100 jobs of 10 pods, against what KubeRay takes for as many clusters and pods |
| scale | 1,000 jobs of 10 pods: children, readiness, writes, memory |
| change | one job changes while others are created |
| idle | what 1,000 jobs cost while nothing happens |
| restart | a new operator finds 1,000 jobs |

The operator is a process of its own with the rights of its manifest. Times come from the API server's audit log and
from the statuses themselves, so that watching costs nothing.
"""
