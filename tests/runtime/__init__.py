"""Executors against their references."""
