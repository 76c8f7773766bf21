"""Training of drafters: texts that the target writes, lessons from its states, one loop for every kind."""
