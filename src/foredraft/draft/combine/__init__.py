"""Drafters made of drafters: choosing, cascading, fusing, guarding and pacing them."""
