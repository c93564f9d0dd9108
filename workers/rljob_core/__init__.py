"""The job's data model, protocol and decisions, without I/O: standard library and pydantic only.

| package | holds |
|---|---|
| `spec`, `config` | the API's models, and a job's resolved configuration |
| `trajectory`, `records`, `messages` | trajectories, the ledger's records, the messages between roles |
| `staleness`, `job_state` | the staleness buffers, and the fold of the ledger |
| `planner`, `actions` | the coordinator's decisions, with their inputs and outputs |
| `ports` | the protocols of what a role uses: message store, weight store, engine, trainer, reward |

`docs/design/staleness.md` explains the protocol and proves what it promises.
"""
