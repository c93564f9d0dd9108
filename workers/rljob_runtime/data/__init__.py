"""Prompts: endless, deterministic sequences of items from reasoning-gym tasks and from JSONL and Parquet files."""
