"""Training of the visual demo: images, a codec, a classifier, a token model and its drafter head."""
