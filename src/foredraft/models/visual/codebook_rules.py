"""Rules that know which codes lie near one another: from a target's codebook, or a file of the user's, to a rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...core.spec import PartTable
from ...core.verify import Rule, lantern, lantern_pp
from ...core.verify.lossy.lantern import nearest_codes
from ...errors import UsageError
from ..load.names import VISUAL, visual_folder
from .codec import load_codec, read_codebook


@dataclass(frozen=True, slots=True)
class Codes:
    """Where a target's codes lie. `size`: tokens of its vocabulary."""

    target: str
    size: int
    device: torch.device

    def nearest(self, count: int, file: str) -> torch.Tensor:
        """[V, count] neighbours of every token, nearest first. Tokens that are no codes have themselves as neighbours:
        they are never drafted, and nothing is pooled with them.
        """
        book = self.book(file)
        if len(book) > self.size:
            raise UsageError(f"the codebook has {len(book)} codes and {self.target!r} only {self.size} tokens")
        near = torch.arange(self.size)[:, None].repeat(1, min(count, len(book) - 1))
        near[: len(book)] = nearest_codes(book, near.shape[1])
        return near.to(self.device)

    def book(self, file: str) -> torch.Tensor:
        """[V, d] the codebook of a file, or the target's own."""
        if file:
            return read_codebook(file)
        folder = visual_folder(self.target)
        if folder is None:
            raise UsageError(
                f"{self.target!r} comes without a codebook; name a file of yours (codebook=FILE), "
                f"or use --model {next(iter(VISUAL))}"
            )
        return load_codec(folder / "codec").codebook


def _lantern(codes: Codes, k: int = 1000, delta: float = 0.1, greedy: bool = False, codebook: str = "") -> Rule:
    """a token may borrow the probability of its k nearest codes, up to the mass delta (lossy)"""
    return lantern(codes.nearest(k + 1, codebook), k, delta, greedy)


def _lantern_pp(codes: Codes, k: int = 10, lam: float = 5.0, greedy: bool = False, codebook: str = "") -> Rule:
    """the same up to lam - 1 times the token's own probability (lossy)"""
    return lantern_pp(codes.nearest(k + 1, codebook), k, lam, greedy)


CODEBOOK_RULES: PartTable[Rule] = PartTable("rule", {"lantern": _lantern, "lantern++": _lantern_pp})


def codebook_rule(codes: Codes, text: str) -> Rule:
    """The rule that a text such as `lantern++:k=5,lam=10` spells, for these codes."""
    return CODEBOOK_RULES.make(text, codes=lambda: codes)
