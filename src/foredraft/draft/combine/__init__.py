"""Drafters made of drafters: choosing, cascading, fusing, guarding them, controlling their lengths."""
