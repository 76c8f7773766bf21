"""Heads that say several tokens a pass."""
