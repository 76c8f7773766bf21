"""The benchmark: every method and plain decoding in one run, counted the same way, with intervals and a record."""
