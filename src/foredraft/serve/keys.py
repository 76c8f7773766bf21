"""API keys: `Authorization: Bearer KEY`, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from .api.api_errors import ApiError
from .settings import ANYONE, key_name


class KeyRing:
    """The keys that open the server; no keys, no lock. Only their digests are kept."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.strip().encode()) for key in keys]  # a header has no blanks around its value

    def check(self, header: str | None) -> str:
        """The caller, by a name that tells nothing of the key; an error if no key fits. Without keys all are one."""
        if not self._digests:
            return ANYONE
        scheme, _, key = (header or "").partition(" ")
        given = _digest(key.strip().encode("latin-1", "replace"))  # headers come as latin-1, whatever they hold
        # All keys are compared, whichever fits: the time must not depend on it.
        fits = [hmac.compare_digest(given, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(fits):
            raise ApiError(401, "a valid API key is needed: Authorization: Bearer KEY", "invalid_api_key")
        return key_name(fits.index(True))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
