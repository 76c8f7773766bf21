"""Judges: labels without people, heads that find tokens right, thresholds that keep a promise."""
