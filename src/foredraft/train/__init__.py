"""Training of drafters: texts that the target writes, teacher outputs from its states, one loop for every kind."""
