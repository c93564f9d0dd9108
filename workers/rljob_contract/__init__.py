"""What an engine, a trainer backend, a loss and a reward must do, as checks that their authors can run.

The modules `engine`, `backend`, `loss` and `reward` each define one contract (`ENGINE`, `BACKEND`, `LOSS`, `REWARD`): a
list of checks, each run on a subject, which creates the engines or backends to check. `rljob check-engine NAME` and its
siblings run a contract on an installed plug-in, and our tests run it on what is built in. The checks need no test
framework: each is a function that raises `ContractBroken` with what it found.
"""
