"""Lossy rules: they accept more than the target would, and say so."""
