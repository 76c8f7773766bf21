"""Drafters that review and continue each other's drafts."""
