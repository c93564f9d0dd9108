"""A base for engines whose requests are each answered with a stream of tokens: vLLM and HTTP."""
