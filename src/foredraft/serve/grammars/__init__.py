"""Grammars that answers are held to, compiled from what strangers send."""
