"""Benchmarks, side by side with other programs where these exist: `python -m bench` runs them.

Each module has `main(sizes) -> dict`, which prints a table and returns its figures, and `SIZES`: how much is measured,
by the names `full` (the documented figures), `quick` and `smoke` (seconds; run by `tests/bench` for every commit).
"""
