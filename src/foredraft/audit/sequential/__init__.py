"""Sequential tests of samplers that may be looked at as often as one likes."""
