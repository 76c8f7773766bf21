"""What `scripts/measure-load` is made of: a server, clients that count, and a page."""
