"""Hugging Face models on disk and in memory: settings, identity, tokenizer, tensors, weights and LoRA adapters.

`tensor_bytes` is the one place where tensors become bytes and bytes become tensors; `identity` decides whether given
tensors are a model's weights.
"""
