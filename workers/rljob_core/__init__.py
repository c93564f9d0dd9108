"""The job's words, protocol and decisions: pure, standard library and pydantic only."""
