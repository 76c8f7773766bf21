"""foredraft inside vLLM: drafts from text that exists already, as a proposer class that vLLM knows by name."""
