"""The target writes text in large batches: one cache of columns for all rows, prompts padded on the left.

Every row starts together, so a step is a handful of large products. The weights may be those of a model in training,
which has no executor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models import Decoder
from .batch_attention import any_length

PREFILL_TOKENS = 65536  # of prompts that are read at once
BLOCK = 64  # columns are looked at in whole blocks: kernels that plan for each length then plan rarely


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt to go on from, and how."""

    prompt: list[int]
    temperature: float = 0.0
    min_p: float = 0.0  # drops tokens below this share of the most likely one


class Columns:
    """K/V of every layer, [B, Hkv, columns, D], and the attention over them. Row b's text begins at first[b]."""

    def __init__(self, decoder: Decoder, first: Tensor, columns: int) -> None:
        c = decoder.config
        shape = (c.num_layers, 2, len(first), c.num_kv_heads, columns, c.head_dim)
        self.data = torch.zeros(shape, dtype=decoder.dtype, device=decoder.device)
        self.first, self.end = first, 0
        self.rows = slice(0, len(first))  # rows that the next pass is about

    def look(self, new: int) -> None:
        """Work out what the next `new` columns of `rows` may see; attention runs over whole blocks of columns."""
        self.stop = self.end + new
        self.upto = min(-(-self.stop // BLOCK) * BLOCK, self.data.shape[4])
        column = torch.arange(self.upto, device=self.first.device)
        mine = column[self.end : self.stop][None, :, None]
        seen = (column >= self.first[self.rows, None, None]) & (column <= mine)
        self.seen = seen | (column == mine)  # padding sees itself

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append the new columns of `rows` and attend over all up to them."""
        keys, values = self.data[layer, 0, self.rows], self.data[layer, 1, self.rows]
        batch, heads = keys.shape[:2]
        new, group = len(q) // batch, q.shape[1] // heads
        keys[:, :, self.end : self.stop] = k.view(batch, new, heads, -1).transpose(1, 2)
        values[:, :, self.end : self.stop] = v.view(batch, new, heads, -1).transpose(1, 2)
        # Heads that share keys become rows of one query, so that nothing is copied for them.
        query = q.view(batch, new, heads, group, -1).permute(0, 2, 3, 1, 4).flatten(2, 3)
        mask = self.seen[:, None, None].expand(-1, 1, group, -1, -1).flatten(2, 3).expand(-1, heads, -1, -1)
        past, values = keys[:, :, : self.upto], values[:, :, : self.upto]
        out = F.scaled_dot_product_attention(query, past, values, attn_mask=mask)
        return out.view(batch, heads, group, new, -1).permute(0, 3, 1, 2, 4).reshape(len(q), -1)

    def keep(self, rows: Tensor) -> None:
        self.data, self.first = self.data[:, :, rows], self.first[rows]
        self.rows = slice(0, len(rows))


@torch.no_grad()
@any_length
def write(
    decoder: Decoder,
    tasks: Sequence[Task],
    max_new: int,
    ends: Collection[int],
    seed: int = 0,
    tell: Callable[[int], None] = lambda tokens: None,
) -> list[list[int]]:
    """What the target writes after each prompt, its closing token included; nothing where it has no distribution. All
    tasks run as one batch."""
    device = decoder.device
    generator = torch.Generator(device).manual_seed(seed)
    width = max(len(task.prompt) for task in tasks)
    first = torch.tensor([width - len(task.prompt) for task in tasks], device=device)
    cache = Columns(decoder, first, width + max_new)
    features = _read(decoder, cache, tasks, width)
    heat = torch.tensor([task.temperature for task in tasks], device=device)
    floor = torch.tensor([task.min_p for task in tasks], device=device)
    stops = torch.tensor(sorted(ends), device=device)
    written = torch.zeros((len(tasks), max_new), dtype=torch.int64, device=device)
    lengths = torch.full((len(tasks),), max_new, dtype=torch.int64, device=device)
    who = torch.arange(len(tasks), device=device)  # which task each running row is
    for i in range(max_new):
        logits = decoder.logits(features)
        token = _choose(logits, heat[who], floor[who], generator)
        written[who, i] = token
        ended = torch.where(torch.isin(token, stops), i + 1, max_new)
        ended = torch.where(logits.amax(-1).isfinite(), ended, 0)
        lengths[who] = torch.where(lengths[who] == max_new, ended, lengths[who])
        tell(len(who))
        alive = lengths[who] == max_new
        if i + 1 == max_new or (i % 16 == 15 and not bool(alive.any())):
            break
        if i % 16 == 15 and int(alive.sum()) < 0.7 * len(who):  # close up over rows that have ended
            rows = alive.nonzero()[:, 0]
            cache.keep(rows)
            who, token = who[rows], token[rows]
        cache.look(1)
        stream, _ = decoder.run(decoder.embed(token), cache.end - cache.first, cache)
        cache.end += 1
        features = decoder.finish(stream)
    return [row[:n] for row, n in zip(written.tolist(), lengths.tolist(), strict=True)]


def _read(decoder: Decoder, cache: Columns, tasks: Sequence[Task], width: int) -> Tensor:
    """Read all prompts; returns the features after each."""
    found = []
    at_once = max(1, PREFILL_TOKENS // width)
    for begin in range(0, len(tasks), at_once):
        part = tasks[begin : begin + at_once]
        cache.rows = slice(begin, begin + len(part))
        ids = torch.tensor([[0] * (width - len(t.prompt)) + t.prompt for t in part], device=decoder.device)
        column = torch.arange(width, device=decoder.device)
        position = (column[None, :] - cache.first[cache.rows, None]).clamp(min=0).reshape(-1)
        cache.look(width)
        stream, _ = decoder.run(decoder.embed(ids.reshape(-1)), position, cache)
        found.append(decoder.finish(stream.view(len(part), width, -1)[:, -1]))
    cache.rows, cache.end = slice(0, len(tasks)), width
    return torch.cat(found)


def _choose(logits: Tensor, heat: Tensor, floor: Tensor, generator: torch.Generator) -> Tensor:
    """One token per row: the most likely at temperature 0, else drawn (by Gumbel noise) from what min-p leaves."""
    scores = logits.float()
    best = scores.argmax(-1)
    scaled = scores / heat.clamp(min=1e-3)[:, None]
    limit = scaled.amax(-1, keepdim=True) + floor.clamp(min=1e-9).log()[:, None]
    noise = torch.rand(scaled.shape, generator=generator, device=scaled.device).clamp_(min=1e-20)
    drawn = scaled.masked_fill(scaled < limit, -torch.inf).sub_(noise.log_().neg_().log_()).argmax(-1)
    return torch.where(heat > 0, drawn, best)
