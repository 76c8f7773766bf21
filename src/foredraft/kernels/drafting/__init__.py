"""Kernels that drafting alone uses: the growth of trees, and the rounds of block drafters."""
