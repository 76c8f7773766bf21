"""What was measured: records, their file, totals, rows of a table and intervals."""
