"""Calls that write no text through a method: tokens, suggestions, embeddings."""
