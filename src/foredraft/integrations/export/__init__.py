"""Trained heads as other engines read them."""
