"""The layers of the decoder and what may take their place: products, rotary positions, low-rank deltas."""
