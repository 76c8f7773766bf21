"""Rows of the table of methods that come with more than a row: their parts, and what they want measured."""
