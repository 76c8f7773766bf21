"""Weights of four and eight bits as published checkpoints have them: one form for all, its products, and its readers.

`grouped_matrix` is the form, `grouped_product` and `grouped_linear` multiply by it, `schemes` and `published` read
Hugging Face folders, `gguf_matrix` GGUF blocks, and `packed_decoder` builds a decoder of either.
"""
