"""The pure part: distributions, rng, sampling, trees and rules. Tensors in, tensors out; no model, cache or clock."""
