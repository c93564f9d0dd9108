"""`rljob simulate`: what a job would take on hardware that one does not have yet.

command             the command itself
cases               the jobs that it simulates: a fleet and values of what is swept, each
fleet               from words, manifests and runs to the engines and the trainer of a scenario
recorded_run        what a run's folder tells of its steps and engines
recorded_decisions  what its decision logs tell besides: when everything happened
measured            the engines, trainer and lengths of a run
table, picture, timeline_file   what it prints, draws and writes
"""
