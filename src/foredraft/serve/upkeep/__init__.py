"""What keeps a server going beside its answers: names of requests, and heads that learn."""
