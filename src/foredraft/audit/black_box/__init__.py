"""The audit of endpoints that are known by their answers only."""
