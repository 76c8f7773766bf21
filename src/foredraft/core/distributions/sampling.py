"""From logits to the distribution that plain decoding would sample from.

Order, as in vLLM: penalties and bias, temperature, then min-p, top-k and top-p. Temperature 0 becomes a point mass at
the argmax here and nowhere else: no rule and no caller branches on it. Penalties see the context of *their* row: the
counts of the committed text plus the row's own drafted ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...errors import UsageError
from ...kernels.threshold_search import can_cut, find_cut
from ...types import Distribution, DraftBatch, SamplingParams
from ..host_look import may_look
from .masks import RowMasks
from .tensors import DenseDistribution, PointMass
from .top_k import argmax

# Rows are truncated by looking at this many of the most likely tokens first; almost always they are enough.
_HEAD = 512
# Logits divided by a smaller temperature could overflow; at this one every distribution is a point mass already.
COLDEST = 1e-30


@dataclass(frozen=True, slots=True)
class ParamBlock:
    """The sampling options of a batch as tensors; what no request uses is None and costs nothing."""

    temperature: Tensor  # [B] float32, 1 where greedy
    greedy: Tensor  # [B] bool
    all_greedy: bool
    any_greedy: bool
    top_k: Tensor | None  # [B] int64, vocabulary size where off
    top_p: Tensor | None  # [B] float32
    min_p: Tensor | None  # [B] float32
    repetition: Tensor | None  # [B, 1]
    presence: Tensor | None
    frequency: Tensor | None
    bias: Tensor | None  # [B, V]

    @classmethod
    def of(cls, params: Seq[SamplingParams], vocab: int, device: torch.device | str = "cpu") -> ParamBlock:
        def column(values: list[float], off: float, dtype: torch.dtype = torch.float32) -> Tensor | None:
            if all(v == off for v in values):
                return None
            return torch.tensor(values, dtype=dtype, device=device)

        def wide(values: list[float], off: float) -> Tensor | None:
            tensor = column(values, off)
            return None if tensor is None else tensor[:, None]

        greedy = [p.temperature == 0 for p in params]
        temperature = [1.0 if p.temperature == 0 else max(p.temperature, COLDEST) for p in params]
        ks = [float(p.top_k if 0 < p.top_k < vocab else vocab) for p in params]
        return cls(
            temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
            greedy=torch.tensor(greedy, dtype=torch.bool, device=device),
            all_greedy=all(greedy),
            any_greedy=any(greedy),
            top_k=column(ks, float(vocab), torch.int64),
            top_p=column([p.top_p for p in params], 1.0),
            min_p=column([p.min_p for p in params], 0.0),
            repetition=wide([p.repetition_penalty for p in params], 1.0),
            presence=wide([p.presence_penalty for p in params], 0.0),
            frequency=wide([p.frequency_penalty for p in params], 0.0),
            bias=_bias(params, vocab, device),
        )

    @property
    def penalised(self) -> bool:
        return self.repetition is not None or self.presence is not None or self.frequency is not None

    def choose(self, index: Tensor) -> ParamBlock:
        """The options of a part of the batch."""

        def part(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[index]

        return ParamBlock(
            self.temperature[index],
            self.greedy[index],
            self.all_greedy,
            self.any_greedy,
            *(part(x) for x in (self.top_k, self.top_p, self.min_p)),
            *(part(x) for x in (self.repetition, self.presence, self.frequency, self.bias)),
        )


def _bias(params: Seq[SamplingParams], vocab: int, device: torch.device | str) -> Tensor | None:
    if not any(p.logit_bias for p in params):
        return None
    bias = torch.zeros((len(params), vocab), device=device)
    for row, p in enumerate(params):
        for token, value in p.logit_bias.items():
            if not 0 <= token < vocab:
                raise UsageError(f"logit_bias names token {token}, but the vocabulary has {vocab}")
            bias[row, token] = value
    return bias


def distribution_of(logits: Tensor, block: ParamBlock) -> Distribution:
    """The distribution of one row per sequence: [B, V] float32 logits, penalties already applied."""
    if block.all_greedy:
        return PointMass(argmax(logits), logits.shape[1])
    probs = torch.softmax(truncate(logits / block.temperature[:, None], block), dim=1)
    if block.any_greedy:
        point = PointMass(argmax(logits), logits.shape[1]).dense()
        probs = torch.where(block.greedy[:, None], point, probs)
    return DenseDistribution(probs)


def truncate(logits: Tensor, block: ParamBlock) -> Tensor:
    """Set the logits that min-p, top-k and top-p exclude to -inf. Ties at the border stay in."""
    if block.min_p is not None:
        floor = logits.amax(dim=1, keepdim=True) + torch.log(block.min_p)[:, None]
        logits = logits.masked_fill(logits < floor, -torch.inf)
    if block.top_k is None and block.top_p is None:
        return logits
    if can_cut(logits):
        return logits.masked_fill(logits < _searched_cut(logits, block), -torch.inf)
    vocab = logits.shape[1]
    # Elsewhere than on the host, looking whether the head sufficed would cost a synchronisation.
    head = min(max(_HEAD, _largest_k(block, vocab)), vocab) if may_look(logits) else vocab
    cut = _cut(logits, block, head)
    if cut is None:
        cut = _cut(logits, block, vocab)
    assert cut is not None
    return logits.masked_fill(logits < cut, -torch.inf)


def _largest_k(block: ParamBlock, vocab: int) -> int:
    """The most tokens that any row's top-k keeps, 0 where top-p needs no such limit: its shares are of their mass."""
    if block.top_k is None or block.top_p is None:
        return 0
    return int(torch.where(block.top_k < vocab, block.top_k, 0).max())


def _cut(logits: Tensor, block: ParamBlock, head: int) -> Tensor | None:
    """[B, 1] smallest logit that stays, found among the `head` largest; None if they do not suffice."""
    vocab = logits.shape[1]
    top = logits.topk(head, dim=1).values  # [B, head], descending
    keep = torch.full_like(logits[:, 0], vocab, dtype=torch.int64) if block.top_k is None else block.top_k
    if block.top_p is not None:
        rank = torch.arange(head, device=logits.device)[None, :]
        share = torch.exp(top - _log_mass(logits, top, block, head))
        mass = share.masked_fill(rank >= keep[:, None], 0.0).cumsum(dim=1)
        short = (mass < block.top_p[:, None]).sum(dim=1)  # a token stays while the mass before it is short of top_p
        keep = torch.minimum(keep, torch.where(block.top_p < 1, short + 1, vocab))
    if head < vocab and bool(((keep > head) & (keep < vocab)).any()):
        return None
    cut = top.gather(1, (keep.clamp(max=head) - 1)[:, None])
    return cut.masked_fill((keep >= vocab)[:, None], -torch.inf)  # such rows keep everything


def _searched_cut(logits: Tensor, block: ParamBlock) -> Tensor:
    """The same [B, 1] without sorting."""
    cut, mass = torch.full_like(logits[:, :1], -torch.inf), torch.logsumexp(logits, dim=1)
    if block.top_k is not None:
        cut = find_cut(logits, block.top_k)
        above = logits > cut
        ties = block.top_k - above.sum(dim=1)  # entries equal to the border that are among the first k
        rest = torch.log(ties.to(torch.float32)) + cut[:, 0]
        mass = torch.logaddexp(torch.logsumexp(logits.masked_fill(~above, -torch.inf), dim=1), rest)
    if block.top_p is not None:
        border = find_cut(logits, block.top_p, mass)
        cut = torch.maximum(cut, border.masked_fill((block.top_p >= 1)[:, None], -torch.inf))
    return cut


def _log_mass(logits: Tensor, top: Tensor, block: ParamBlock, head: int) -> Tensor:
    """[B, 1] log of the total weight that top-p's shares refer to: what top-k left over. No k lies beyond the head but
    that of rows without top-k."""
    if block.top_k is None:
        return torch.logsumexp(logits, dim=1, keepdim=True)
    rank = torch.arange(head, device=logits.device)[None, :]
    limited = top.masked_fill(rank >= block.top_k[:, None], -torch.inf)
    full = torch.logsumexp(logits, dim=1, keepdim=True)
    return torch.where(block.top_k[:, None] > head, full, torch.logsumexp(limited, dim=1, keepdim=True))


@dataclass(slots=True)
class TokenCounts:
    """How often each token occurs in the committed text of each sequence: what penalties look at."""

    prompt_and_output: Tensor  # [B, V] float32
    output: Tensor  # [B, V] float32

    def choose(self, index: Tensor) -> TokenCounts:
        """Those of some sequences."""
        return TokenCounts(self.prompt_and_output[index], self.output[index])


def penalise(logits: Tensor, counts: TokenCounts, path: Tensor, block: ParamBlock) -> Tensor:
    """Penalties with the context of one row per sequence. path: [B, A] the row's drafted ancestors, -1 = none."""
    weight = (path >= 0).to(torch.float32)
    extra = torch.zeros_like(logits).scatter_add_(1, path.clamp(min=0), weight)
    output = counts.output + extra
    if block.repetition is not None:
        seen = (counts.prompt_and_output + extra) > 0
        harder = torch.where(logits > 0, logits / block.repetition, logits * block.repetition)
        logits = torch.where(seen, harder, logits)
    if block.presence is not None:
        logits = logits - block.presence * (output > 0)
    if block.frequency is not None:
        logits = logits - block.frequency * output
    return logits


@dataclass(slots=True)
class LogitDistributions:
    """The distributions of a batch of tree rows, computed from packed logits when a rule visits a row.

    `index[b, r]` says which packed row of `logits` belongs to row r of sequence b.
    """

    logits: Tensor  # [M, V], any float dtype
    index: Tensor  # [B, N + 1] int64, fewer where no sequence has N nodes
    block: ParamBlock
    drafts: DraftBatch | None = None  # needed for penalties only
    counts: TokenCounts | None = None
    mask: RowMasks | None = None  # what grammars allow
    bad: Tensor = field(init=False)  # [B, N + 1] bool, visited rows that held NaN or allowed no token at all

    def __post_init__(self) -> None:
        self.bad = torch.zeros(self.index.shape, dtype=torch.bool, device=self.logits.device)

    @property
    def is_softmax(self) -> bool:
        """Whether every distribution is softmax(logits / temperature) and nothing else."""
        block = self.block
        cut = block.top_k is not None or block.top_p is not None or block.min_p is not None
        changed = self.counts is not None or self.mask is not None or block.bias is not None
        return not (cut or changed or block.any_greedy)

    def at_temperature_one(self) -> LogitDistributions:
        """The same rows, penalties and truncation, at temperature 1 where the request is greedy.

        For lossy rules that weigh alternatives (typical acceptance, divergence gates, FLy): a point mass has none.
        """
        block = replace(self.block, greedy=torch.zeros_like(self.block.greedy), all_greedy=False, any_greedy=False)
        return replace(self, block=block)

    def every_row(self) -> tuple[Distribution, Tensor]:
        """All rows at once by the same arithmetic, one after another [B * (N + 1)]; and which are void [B, N + 1].

        For rows without masks.
        """
        batch, rows = self.index.shape
        who = torch.arange(batch, device=self.logits.device)[:, None].expand(batch, rows)
        block, logits = self.block.choose(who.flatten()), self.logits[self.index.flatten()].to(torch.float32)
        if self.counts is not None and self.drafts is not None:
            row = torch.arange(rows, device=logits.device).expand(batch, rows)
            path = torch.stack([ancestor_tokens(self.drafts, r) for r in row.unbind(1)], dim=1)
            logits = penalise(logits, self.counts.choose(who.flatten()), path.flatten(0, 1), block)
        void = ~torch.isfinite(logits.amax(dim=1, keepdim=True))
        return distribution_of(logits.masked_fill(void, 0.0), block), void.view(batch, rows)

    def at(self, row: Tensor) -> Distribution:
        row = row.clamp(max=self.index.shape[1] - 1)  # a device visits nodes that no sequence has
        logits = self.logits_at(row)
        void = ~torch.isfinite(logits.amax(dim=1, keepdim=True))
        self.bad.scatter_(1, row[:, None], void)
        # A void row may lie below a rejected draft, where nobody reads it; made uniform, it cannot spoil sums of rows.
        if not may_look(logits) or bool(void.any()):
            logits = logits.masked_fill(void, 0.0)
        return distribution_of(logits, self.block)

    def logits_at(self, row: Tensor) -> Tensor:
        """[B, V] float32 logits of one row a sequence, with penalties, biases and what a grammar forbids."""
        packed = self.index.gather(1, row[:, None])[:, 0]
        logits = self.logits[packed].to(torch.float32)
        if self.counts is not None and self.drafts is not None:
            logits = penalise(logits, self.counts, ancestor_tokens(self.drafts, row), self.block)
        if self.block.bias is not None:
            logits = logits + self.block.bias
        return logits if self.mask is None else logits.masked_fill(~self.mask.at(row), -torch.inf)


def ancestor_tokens(drafts: DraftBatch, row: Tensor) -> Tensor:
    """[B, levels] tokens of the drafted nodes from `row` up to the root, -1 = padding."""
    node = row - 1
    out = []
    for _ in range(drafts.levels):
        inside = node >= 0
        at = node.clamp(min=0)[:, None]
        out.append(torch.where(inside, drafts.token.gather(1, at)[:, 0], -1))
        node = torch.where(inside, drafts.parent.gather(1, at)[:, 0], -1)
    return torch.stack(out, dim=1) if out else torch.full((row.shape[0], 1), -1, device=row.device)
