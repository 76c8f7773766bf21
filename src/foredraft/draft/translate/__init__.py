"""Drafters whose tokenizer is not the target's: by the tokens that both know, and by text."""
