"""Agents that rljob knows nothing of: programs that speak OpenAI's chat completions, one process for each episode."""
