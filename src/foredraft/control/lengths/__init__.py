"""Length rules: how many tokens to draft, decided before a round from the rounds before it."""
