"""Shapes: where a model drafter spends its next call. Chains, static and dynamic trees, stop rules."""
