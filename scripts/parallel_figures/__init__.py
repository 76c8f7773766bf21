"""Parts of `scripts/measure-parallel`."""
