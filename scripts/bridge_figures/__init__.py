"""What `scripts/measure-bridges` measures, part by part, and the page of it."""
