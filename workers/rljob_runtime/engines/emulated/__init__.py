"""The engine `Emulated`: sleeps by a profile instead of computing, to benchmark everything around an engine."""
