"""Marks for answers: scorers, and the sandbox that runs written code."""
