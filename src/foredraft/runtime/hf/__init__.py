"""The executor for architectures that only transformers knows, run through its own code."""
