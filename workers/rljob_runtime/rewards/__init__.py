"""Reward functions by name, and the processes that run them under a time limit."""
