"""What `scripts/measure-gpu` is made of."""
