"""What clients may choose from: methods, rules and judges."""
