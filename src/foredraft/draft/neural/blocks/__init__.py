"""Drafters whose head says several tokens a pass."""
