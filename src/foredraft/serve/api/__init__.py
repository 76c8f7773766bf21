"""The OpenAI API: bodies in, answers out."""
