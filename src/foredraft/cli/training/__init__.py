"""Commands that train drafters."""
