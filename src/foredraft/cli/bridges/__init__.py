"""Commands that lead to other engines."""
