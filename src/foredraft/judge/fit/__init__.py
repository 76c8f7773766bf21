"""Training judges, and the pair that they are shown on."""
