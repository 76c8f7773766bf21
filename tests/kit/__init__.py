"""Helpers for tests: table language models, drafts of every kind, the exactness check, and wrong rules to catch."""
