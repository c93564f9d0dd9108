"""The engine `Torch`: continuous batching of a Hugging Face causal model in a thread of its own."""
