"""Parts of `scripts/measure-tools`."""
