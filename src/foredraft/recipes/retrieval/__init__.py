"""Methods whose drafts come from text that exists already, and how files become datastores."""
