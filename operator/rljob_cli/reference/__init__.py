"""`rljob reference`: pages of every field, every option and every key of `metrics.jsonl`, made from the code."""
