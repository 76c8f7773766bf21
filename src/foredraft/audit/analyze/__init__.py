"""What drafters and rules are worth on given prompts, and how far from the optimum they are."""
