"""Benchmarks: each module has `main() -> dict`; `python -m bench` runs them."""
