"""foredraft: causal language models write faster by speculation."""
