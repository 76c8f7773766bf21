"""Drafters that copy text which was seen before. They need no model."""
