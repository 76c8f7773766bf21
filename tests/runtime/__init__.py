"""Executors against their slow twins."""
