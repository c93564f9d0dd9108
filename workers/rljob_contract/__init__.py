"""What an engine, a trainer backend and a reward must do, as checks that their authors can run.

`engine`, `backend` and `reward` each hold one contract (`ENGINE`, `BACKEND`, `REWARD`): a list of checks on a subject,
which makes what is checked. `rljob check-engine NAME` and its siblings run them on what has that name, our own tests on
what is ours. They need no test framework: a check is a function that raises `Broken` with what it found.
"""
