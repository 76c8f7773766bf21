"""`foredraft judge`: labels, heads, thresholds and proofs for a rule that accepts what is right."""
