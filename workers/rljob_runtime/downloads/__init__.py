"""Downloads of models and data sets: from a Hugging Face hub and from object stores, into a cache that is shared."""
