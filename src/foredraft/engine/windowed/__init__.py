"""The second loop: methods that draft while the target verifies."""
