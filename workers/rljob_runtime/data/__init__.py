"""Prompts: reasoning-gym tasks, JSONL and Parquet files, each an endless deterministic sequence of items."""
