"""Decoding of held-out text, worked out without an engine."""
