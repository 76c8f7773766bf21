"""Forerunner: a block of k tokens from one pass that reads the prompt through the target's own keys and values.

Backbone, once a round: k rows start from the pending token, the target's states before it and a learnt query each, and
attend to keys and values that the target has computed anyway, and to the rows before them. Row j says what the token
j + 1 places after the pending one might be, whatever stands between.

Correction, once a level and without attention: a node's state is its row's, changed by the state above it and by its
own token; so branches of a tree know their parents.

Copies: pointers to places of the text, scored by the backbone's first row against the target's keys and by how much of
the text before them agrees with its end. A pointer gives its token a share of the probability as long as what is
drafted follows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....core.distributions.top_k import find_top_k
from ....kernels.activation import gated
from ....kernels.norm import norm
from ...decoder import Decoder, Layer
from ...layers.gemv_narrow import norm_and_multiply
from ...layers.linear import Linear
from ...layers.rope import rotate
from ..base import HeadSpec, draft_config, start, word_rows

MATCHES = 4  # tokens before a pointer that are compared with the end of the text
POINTERS = 16  # that are followed
FOLLOWED, LEFT = 1.0, -4.0  # what a pointer's score gains by a drafted token that it has foreseen, and else
FIRST_MATCHES = (-12.0, -6.0, -3.5, -2.0, -1.0)  # scores at first, by matched tokens
NOWHERE = -1e4  # the score of a place that nobody may point at


@dataclass(frozen=True, slots=True)
class Pointers:
    """Where each of N drafts may copy from."""

    score: Tensor  # [N, M] float32
    token: Tensor  # [N, M, k] int64 target ids that follow each place; -1 where the text ends


class Block(NamedTuple):
    """What the backbone says after texts, in k levels."""

    rows: Tensor  # [B, k, d]
    shares: Tensor  # [B, k, ..] what corrections take from them
    pointers: Pointers | None  # where they may copy from


class ForerunnerHead(nn.Module):
    """Backbone, correction and pointers; each of `context`, `correction` and `copy` may be left out (`spec.extra`)."""

    borrowed: tuple[str, ...] = ("embedding", "head.")
    ids: Tensor
    rotations: Tensor
    scale: Tensor  # [taps * d] of the target's states

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__()
        extra, where, d = spec.extra, target.device, target.config.hidden_size
        self.taps, self.length, self.hidden_size = spec.taps, spec.length, d
        self.context_layers: tuple[int, ...] = tuple(extra["context_layers"])
        scales = torch.tensor([float(scale) for scale in extra["scales"]], device=where)
        self.register_buffer("scale", scales.repeat_interleave(d), persistent=False)
        self.context, self.corrects, self.copies = (bool(extra.get(n, True)) for n in ("context", "correction", "copy"))
        self.config = draft_config(target.config, spec.layers, len(ids), extra.get("ff"))
        self.embedding, self.head = target.embedding, word_rows(target, ids)
        self.unit = float(target.embedding.detach().float().norm(dim=1).mean()) / d**0.5
        self.register_buffer("rotations", target.rotations, persistent=False)
        self.register_buffer("ids", ids.to(where), persistent=False)
        self.fuse = Linear((len(spec.taps) + 1) * d, d, torch.float32, where)
        self.query = nn.Parameter(torch.zeros((spec.length, d), device=where))
        self.layers = nn.ModuleList(Layer(self.config, torch.float32, where) for _ in range(spec.layers))
        self.norm = nn.Parameter(torch.ones(d, device=where))
        if self.corrects:
            self.correction = Correction(d, int(extra["width"]), self.config.norm_eps, where)
        if self.copies:
            self.pointer = Pointer(target, spec.layers, spec.length, where)
        self.begin(target)

    @torch.no_grad()
    def begin(self, target: Decoder) -> None:
        """Fresh weights. A backbone layer begins as the target's layer whose keys it reads, where their shapes agree;
        streams are in units of the last tap's size here, so what a layer adds is made smaller by as much."""
        start(self.fuse)
        d = self.hidden_size
        self.fuse.weight[:, -d:] += torch.eye(d, device=self.fuse.weight.device)
        nn.init.normal_(self.query, std=0.5)
        for layer, index in zip(self.layers, self.context_layers, strict=True):
            start(layer)
            given = dict(target.layers[index].named_parameters())
            for name, own in layer.named_parameters():
                source = given.get(name)
                if source is not None and source.shape == own.shape:
                    smaller = self.scale[-1] if name in ("out.weight", "down.weight") else 1.0
                    own.copy_(source / smaller)
        self.norm.copy_(target.norm)

    @property
    def beside(self) -> list[tuple[int, Layer]]:
        """Its layers, each with the target's layer whose keys and values it reads."""
        return list(zip(self.context_layers, (cast(Layer, layer) for layer in self.layers), strict=True))

    def stream(self, token: Tensor, states: Tensor, size: int | None = None) -> Tensor:
        """Pending tokens [N] and the target's states before them, all taps in a row [N, taps * d] -> the first `size`
        rows of a block, all k unless said, [N, size, d]."""
        embeds = F.embedding(token, self.embedding) / self.unit
        scaled = states / self.scale  # in float32
        joined: Tensor = self.fuse(torch.cat([part.to(self.query.dtype) for part in (embeds, scaled)], dim=-1))
        return joined[:, None] + self.query[:size].to(joined.dtype)

    def backbone(self, rows: Tensor, position: Tensor, attend: object) -> Tensor:
        """Rows [N, k, d] that begin at positions [N] -> the same after all layers. `attend`: as a decoder's layers."""
        count, size, d = rows.shape
        place = position[:, None] + torch.arange(size, device=position.device)
        turns = self.rotations[place.flatten().clamp(max=len(self.rotations) - 1)]
        cos, sin = turns.chunk(2, dim=1)
        x = rows.flatten(0, 1)
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, attend, index)
        return x.view(count, size, d)

    def asked(self, features: Tensor, position: Tensor) -> Tensor:
        """What first rows [N, d] that stand at positions [N] ask texts for, [N, heads, D]."""
        cos, sin = self.rotations[position.clamp(max=len(self.rotations) - 1)].chunk(2, dim=1)
        return self.pointer.asked(features, cos, sin)

    def features(self, state: Tensor) -> Tensor:
        """States [.., d] -> what the target's output rows read."""
        return norm(state, self.norm, self.config.norm_eps)

    def shares(self, rows: Tensor) -> Tensor:
        """What the correction of a level takes from the backbone's rows [N, d], worked out once for all its nodes."""
        return self.correction.share(rows) if self.corrects else rows

    def below(self, row: Tensor, share: Tensor, above: Tensor, token: Tensor) -> Tensor:
        """The backbone's rows of nodes' levels and their `shares`, the states above the nodes, their tokens -> the
        nodes' states; [N, d], [N] tokens."""
        if not self.corrects:
            return row
        state: Tensor = self.correction(row, share, above, F.embedding(token, self.embedding) / self.unit)
        return state

    def logits(self, features: Tensor) -> Tensor:
        scores: Tensor = self.head(features)
        return scores


class Correction(nn.Module):
    """row + W (silu(a) * b) with a, b linear in the normed row, the normed state above and the token's embedding."""

    def __init__(self, d: int, width: int, eps: float, device: torch.device) -> None:
        super().__init__()
        self.eps = eps
        self.row_norm, self.above_norm = (nn.Parameter(torch.ones(d, device=device)) for _ in range(2))
        self.row = Linear(d, 2 * width, torch.float32, device)
        self.node = Linear(2 * d, 2 * width, torch.float32, device)
        self.down = Linear(width, d, torch.float32, device)
        start(self)

    def share(self, rows: Tensor) -> Tensor:
        return norm_and_multiply(self.row, rows, self.row_norm, self.eps)

    def forward(self, row: Tensor, share: Tensor, above: Tensor, embeds: Tensor) -> Tensor:
        read = torch.cat((norm(above, self.above_norm, self.eps), embeds.to(above.dtype)), dim=-1)
        return self.down.add_to(row, gated(self.node.add_to(share, read)))


class Pointer(nn.Module):
    """Scores of places to copy from, and how they change as drafts follow them."""

    def __init__(self, target: Decoder, layers: int, length: int, device: torch.device) -> None:
        super().__init__()
        c = target.config
        self.heads, self.dim = layers * c.num_kv_heads, c.head_dim
        self.query = Linear(c.hidden_size, self.heads * self.dim, torch.float32, device)
        nn.init.zeros_(self.query.weight)  # matches alone count at first: keys are large, and noise on them would copy
        self.matched = nn.Parameter(torch.tensor(FIRST_MATCHES, device=device))
        self.level = nn.Parameter(torch.zeros(length, device=device))
        self.followed = nn.Parameter(torch.tensor([[LEFT, FOLLOWED]] * length, device=device))
        self.gate = nn.Parameter(torch.zeros(c.hidden_size, device=device))

    def asked(self, feature: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Features [N, d] of first rows -> queries [N, heads, D], turned as the keys are."""
        return rotate(self.queries(feature), cos, sin) * (self.dim * self.heads) ** -0.5

    def queries(self, feature: Tensor) -> Tensor:
        """The same before they are turned and scaled."""
        asked: Tensor = self.query(feature)
        return asked.view(len(feature), self.heads, self.dim)

    def scores(self, likeness: Tensor, matches: Tensor) -> Tensor:
        """Products of queries and keys, and matched tokens, [.., T] each -> scores of every place."""
        worth = self.matched.float()
        found = worth[0].expand_as(likeness)
        for count in range(1, len(worth)):  # a look-up's gradient was three quarters of a training step on a GPU
            found = torch.where(matches == count, worth[count], found)
        return likeness.float() + found

    def follow(self, score: Tensor, token: Tensor, drafted: Tensor, level: int) -> Tensor:
        """Scores [.., M] of pointers whose tokens of the level above were `token` [.., M], after `drafted` [..]."""
        left, kept = self.followed[level].float()
        return score + torch.where(token == drafted[..., None], kept, left)

    def mixed(self, logits: Tensor, feature: Tensor, score: Tensor, copied: Copied, level: int) -> Tensor:
        """Logits [.., V] with the shares of pointers, scores [.., M], in float32.

        A pointer has exp(score + gate) as much probability as all words together before: a word that pointers name
        gets log(q + sum exp c), q being its probability among the words.
        """
        gate = (feature.float() * self.gate.float()).sum(-1) + self.level[level].float()
        share = torch.where(copied.there, score + gate[..., None], NOWHERE)
        mass = torch.where(copied.same, share[..., None, :], NOWHERE).logsumexp(-1)
        known = logits.log_softmax(-1, dtype=torch.float32)
        column = copied.column.expand_as(share)
        plain = known.gather(-1, column)
        return known.scatter_add(-1, column, torch.where(copied.first, torch.logaddexp(plain, mass) - plain, 0.0))


@dataclass(frozen=True, slots=True)
class Copied:
    """The tokens that pointers name, as columns of the logits: what `Pointer.mixed` needs to know of them."""

    column: Tensor  # [.., M]; 0 where there is none
    there: Tensor  # [.., M] bool
    same: Tensor  # [.., M, M] bool: which pointers name the same
    first: Tensor  # [.., M] bool: the first of those

    @classmethod
    def of(cls, column: Tensor) -> Copied:
        """Of [.., M] columns, -1 = none."""
        there, same = column >= 0, column[..., :, None] == column[..., None, :]
        first = ~(same & torch.ones_like(same).tril(-1)).any(-1) & there
        return cls(column.clamp(min=0), there, same, first)

    def at(self, level: int) -> Copied:
        """Of [B, k, M]: those of one level, [B, 1, M], whatever its nodes are."""
        own = slice(level, level + 1)
        return Copied(self.column[:, own], self.there[:, own], self.same[:, own], self.first[:, own])


def likeness(keys: Tensor, asked: Tensor) -> Tensor:
    """Keys of texts by page, [B, P, Hkv, rows, D], times what is asked for, [B, Hkv, D] -> [B, P * rows] float32."""
    found = keys @ asked[:, None, :, :, None].to(keys.dtype)
    return found.sum(2)[..., 0].flatten(1).float()


def matched_tokens(text: Tensor, end: Tensor) -> Tensor:
    """[.., T] int64: how many tokens up to each place of texts agree with those up to `end`, 0 to MATCHES.

    text [B, T], end [B, G] -> [B, G, T].
    """
    length = text.shape[1]
    running = torch.ones((*end.shape, length), dtype=torch.bool, device=text.device)
    found = torch.zeros((*end.shape, length), dtype=torch.int64, device=text.device)
    for i in range(MATCHES):
        tail = text.gather(1, (end - i).clamp(min=0))
        before = F.pad(text, (i, 0), value=-1)[:, :length]
        running = running & (before[:, None, :] == tail[:, :, None]) & (end >= i)[:, :, None]
        found = found + running
    return found


def point(scores: Tensor, text: Tensor, end: Tensor, size: int) -> Pointers:
    """The best places of scores [B, G, T] and what follows them in texts [B, T] of which tokens up to `end` are known.

    Place s says that the token after s comes next; the newest token has none after it. -> Pointers of B * G drafts.
    """
    groups, length = scores.shape[1:]
    place = torch.arange(length, device=scores.device)
    scores = scores.masked_fill(place >= end[:, :, None], NOWHERE)
    best = find_top_k(scores.detach().flatten(0, 1), min(POINTERS, length))[1].view(*scores.shape[:2], -1)
    score = scores.gather(2, best)  # with its gradient
    after = best[..., None] + 1 + torch.arange(size, device=scores.device)
    known = (after <= end[:, :, None, None]) & (score > NOWHERE / 2)[..., None]
    token = text[:, None, :].expand(-1, groups, -1).gather(2, after.clamp(max=length - 1).flatten(2))
    token = torch.where(known, token.view_as(after), -1)
    return Pointers(score.flatten(0, 1), token.flatten(0, 1))
