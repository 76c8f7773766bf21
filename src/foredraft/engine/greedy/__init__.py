"""Verification at temperature 0: the fast path of the rule `greedy`, on the host, in torch and in CUDA graphs."""
