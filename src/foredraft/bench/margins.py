"""How near two tokens were where an exact greedy method and plain decoding part: the target's logits at that place.

In bf16 the shape of a pass changes its rounding, so a near-tie may fall the other way (DESIGN invariant 8). Such
differences are reported with their margin; a large margin in fp32 would be a bug.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from ..runtime import Executor, Rows
from .results.records import Difference

NextLogits = Callable[[list[int]], Tensor]  # a text -> [V] logits of what follows it


def find_difference(read: NextLogits, prompt: list[int], plain: list[int], method: list[int]) -> Difference | None:
    """The first difference of two outputs; None = they are equal."""
    if plain == method:
        return None
    pairs = enumerate(zip(plain, method, strict=False))
    position = next((i for i, (a, b) in pairs if a != b), min(len(plain), len(method)))
    ours = plain[position] if position < len(plain) else None
    theirs = method[position] if position < len(method) else None
    logits = read(prompt + plain[:position])
    first, second = logits.topk(2).values.tolist()
    gap = None if ours is None or theirs is None else float(logits[ours] - logits[theirs])
    return Difference(position, ours, theirs, first - second, gap)


class Reader:
    """Prefills texts again and caches the last few: methods mostly part from plain decoding at the same near-tie."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._known: deque[tuple[list[int], Tensor]] = deque(maxlen=4)

    def __call__(self, text: list[int]) -> Tensor:
        """Needs a free slot 0, and leaves it empty."""
        for known, logits in self._known:
            if known == text:
                return logits
        logits = next_logits(self.executor, text)
        self._known.append((text, logits))
        return logits


@torch.inference_mode()
def next_logits(executor: Executor, text: list[int]) -> Tensor:
    """[V] float32 logits after a text."""
    executor.rollback([0], [0])
    executor.prefill([0], [text[:-1]])
    out = executor.forward(Rows.chains([0], [text[-1:]], executor.device))
    executor.rollback([0], [0])
    return out.logits[0].to(torch.float32)
