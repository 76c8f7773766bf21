"""Counter-based random numbers: one at a time, in batches, and enumerated over all outcomes."""
