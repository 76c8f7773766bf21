"""Heads that others have published, read into ours: EAGLE, EAGLE-3, speculators, Medusa, IBM's MLP speculator."""

from .folder_formats import is_head, published_kind, read_published

__all__ = ["is_head", "published_kind", "read_published"]
