"""Hugging Face models on disk and in memory: settings, tokenizer, tensors, weights, LoRA."""
