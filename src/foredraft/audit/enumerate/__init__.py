"""Exactness by enumeration: methods on table models, under all outcomes of their random numbers."""
