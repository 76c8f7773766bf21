"""What learns while it runs: cost model, acceptance statistics, calibration, draft lengths, back-off."""
