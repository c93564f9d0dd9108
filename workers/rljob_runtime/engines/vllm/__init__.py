"""The engine `vLLM`: vLLM in processes of its own, with our weight transfer and random numbers."""
