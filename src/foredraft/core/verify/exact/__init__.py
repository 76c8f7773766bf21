"""Exact rules: the text keeps the target distribution."""
