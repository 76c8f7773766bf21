"""Triton kernels, each with its reference implementation in torch. They know tensors and no part of the engine."""
