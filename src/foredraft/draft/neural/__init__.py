"""Drafters with a model: draft models, EAGLE and Medusa heads, early exits."""
