"""How near two tokens were where an exact greedy method and plain decoding part: the target's logits at that place.

In bf16 the shape of a pass changes its rounding, so a near-tie may fall the other way (DESIGN law 8). Such differences
are reported with their margin; a large margin in fp32 would be a fault.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..runtime import Executor, Rows
from .records import Difference


def find_difference(executor: Executor, prompt: list[int], plain: list[int], method: list[int]) -> Difference | None:
    """The first difference of two outputs; None = they are equal. Needs a free slot 0, and leaves it empty."""
    if plain == method:
        return None
    pairs = enumerate(zip(plain, method, strict=False))
    position = next((i for i, (a, b) in pairs if a != b), min(len(plain), len(method)))
    ours = plain[position] if position < len(plain) else None
    theirs = method[position] if position < len(method) else None
    logits = next_logits(executor, prompt + plain[:position])
    first, second = logits.topk(2).values.tolist()
    gap = None if ours is None or theirs is None else float(logits[ours] - logits[theirs])
    return Difference(position, ours, theirs, first - second, gap)


@torch.inference_mode()
def next_logits(executor: Executor, text: list[int]) -> Tensor:
    """[V] float32 logits behind a text that the target reads anew."""
    executor.rollback([0], [0])
    executor.prefill([0], [text[:-1]])
    out = executor.forward(Rows.chains([0], [text[-1:]], executor.device))
    executor.rollback([0], [0])
    return out.logits[0].to(torch.float32)
