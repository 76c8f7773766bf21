"""Other engines under audit, in this process: each one a `Subject`, imported only when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ...errors import unknown_name
from ...models import resolve
from ..greedy_identity import GreedySubject
from ..subject import Subject

PEERS = ("transformers", "vllm")


class PeerSubject(Subject, GreedySubject, Protocol):
    """Another engine, loaded and ready."""

    version: str


def load_peer(peer: str, folder: Path, assistant: str, temperature: float, dtype: str) -> PeerSubject:
    """An engine by name, with the way it shall speculate; raises one clear line where it is not installed."""
    if peer not in PEERS:
        raise unknown_name("peer", peer, PEERS)
    if assistant.partition(":")[0] not in ("none", "lookup", "layers", "ngram"):
        assistant = str(resolve(assistant))  # another model, by any name that --model takes
    if peer == "transformers":
        from .hugging_face import load

        return load(folder, assistant, temperature, dtype)
    from .vllm_engine import load_vllm

    return load_vllm(folder, assistant, temperature, dtype)
