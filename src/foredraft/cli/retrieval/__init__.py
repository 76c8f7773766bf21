"""`foredraft store` and `foredraft complete`."""
