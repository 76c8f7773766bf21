"""Calibration and evaluation of judges."""
