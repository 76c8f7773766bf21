"""Other engines in the same run, each behind one small protocol; whichever is not installed is left out."""
