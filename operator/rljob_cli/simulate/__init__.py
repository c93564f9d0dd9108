"""`rljob simulate`: what a job would take on hardware that one does not have yet.

fleet    from words and manifests to the engines and the trainer of a scenario
command  the command itself: a simulated job for each fleet and each value of what is swept
table    what it prints
"""
