"""Parts of `scripts/real-judge`: a judge for a real pair, from questions to tables."""
