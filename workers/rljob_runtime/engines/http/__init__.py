"""The engine `HTTP`: an OpenAI-compatible completions server that somebody else runs."""
