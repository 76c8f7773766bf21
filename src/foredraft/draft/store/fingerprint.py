"""What a file must be: its size, a digest of all of it, and a digest of samples that takes milliseconds to check."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ...errors import ForedraftError

BLOCK, BLOCKS = 1 << 16, 64  # samples: evenly spaced, the ends included. Files of up to 4 MiB are read whole


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Of one file."""

    size: int
    whole: str
    samples: str

    @classmethod
    def of(cls, path: Path) -> Fingerprint:
        with path.open("rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.stat().st_size, whole, samples_of(path))

    def check(self, path: Path, whole: bool = False) -> None:
        """Raise where the file is not the one that was written."""
        try:
            same = path.stat().st_size == self.size and samples_of(path) == self.samples
            if same and whole:
                with path.open("rb") as file:
                    same = hashlib.file_digest(file, "sha256").hexdigest() == self.whole
        except OSError as error:
            raise ForedraftError(f"{path}: {error.strerror}; build the store again") from None
        if not same:
            raise ForedraftError(f"{path} is damaged: it is not the file that was written; build the store again")


def samples_of(path: Path) -> str:
    """A digest of evenly spaced blocks."""
    size, digest = path.stat().st_size, hashlib.sha256()
    last = max(0, size - BLOCK)
    with path.open("rb") as file:
        for begin in sorted({last * i // (BLOCKS - 1) for i in range(BLOCKS)}):
            file.seek(begin)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()
