"""Lossy rules: they accept more than exact rules may, and declare it."""
