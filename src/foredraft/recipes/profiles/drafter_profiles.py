"""What was measured of a drafter on a target, on disk: acceptance does not depend on the machine. Knows no method."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ...models.heads import weights_digest
from ...models.load.folders import cache_home
from ...provenance import provenance, write_json
from ..loading import Loaded
from ..trained import find_head

FORMAT = 1


def drafter_mark(target: Loaded, kind: str | None, named: str | None) -> str:
    """A drafter by what it is: the digest of a head's weights, else the name of a model."""
    if kind is None:
        return f"model {named or 'its own'}"
    return f"{kind} {weights_digest(find_head(kind, target, named))[:16]}"


def drafter_file(target: Loaded, mark: str) -> Path:
    executor = target.executor
    shape = [
        executor.vocab_size,
        executor.hidden_size,
        executor.num_layers,
        target.dtype,
        target.tokenizer.vocab_hash(),
    ]
    key = json.dumps([FORMAT, target.name, shape, mark])
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(target.name).name)
    return cache_home() / "profiles" / f"drafter-{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def stored(target: Loaded, mark: str) -> dict[str, Any]:
    """What is known of a drafter; nothing where nobody has measured it, or the file cannot be read."""
    try:
        found = json.loads(drafter_file(target, mark).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == FORMAT else {}


def store(target: Loaded, mark: str, **measured: Any) -> Path:
    """Add what was measured now to what is known."""
    path = drafter_file(target, mark)
    known = stored(target, mark) | measured
    write_json(path, known | {"format": FORMAT, "drafter": mark, "provenance": provenance(argv=())})
    return path


def stored_ranks(target: Loaded, mark: str, temperature: float) -> tuple[float, ...] | None:
    """Acceptance by rank at the measured temperature that is nearest; None = not measured."""
    known = stored(target, mark).get("ranks", {})
    if not known:
        return None
    nearest = min(known, key=lambda measured: abs(float(measured) - temperature))
    return tuple(known[nearest]["accept"])
