"""The `foredraft` command. A subcommand is a function; its signature is its parser and its help."""

from .app import main

__all__ = ["main"]
