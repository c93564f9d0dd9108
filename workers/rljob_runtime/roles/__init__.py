"""The four roles of a job, one package or module each, and below them what several of them use."""
