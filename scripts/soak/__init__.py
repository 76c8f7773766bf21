"""Parts of `scripts/load-test --attack`: attackers, innocent clients, and the page about what those noticed."""
