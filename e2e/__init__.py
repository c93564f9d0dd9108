"""End-to-end tests, and the harness that starts real clusters for them."""
