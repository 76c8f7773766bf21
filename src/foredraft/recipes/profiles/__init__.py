"""What was measured of drafters on a target, and the texts that it is measured on."""
