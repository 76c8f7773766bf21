"""The native library: how it is built, kept and chosen."""
