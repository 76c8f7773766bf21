"""The pure part: laws, dice, sampling, trees and rules. Tensors in, tensors out; no model, cache or clock."""
