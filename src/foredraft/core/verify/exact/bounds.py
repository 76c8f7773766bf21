"""The best acceptance that any exact rule can reach at one node: alpha*(p, q, K).

Dual of the transport problem (Hu et al. 2025): alpha* = 1 + min over token sets H of p(H) - Q(H), where Q(H) is the
probability that all K candidates lie in H. For independent draws and for draws without replacement the minimum is at a
prefix of the tokens sorted by p/q, so a sort and running sums suffice, at any vocabulary size. float64 on the host.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
_EXACT, _MERGED = 1e-15, 1e-10  # errors of the time integral, without and with shared steps
_NEAR = 1e-5  # prefixes that leave less of q than this are looked at only where they might be the best
_SINGLE = 512  # most likely tokens that keep their own step in the race; the others share steps
_NEVER = 1e-14  # draft probabilities below this count as zero
_SHARED = 512  # shared steps


def alpha_star(p: ArrayLike, q: ArrayLike, count: int, replacement: bool = True) -> float:
    """Largest acceptance probability of `count` candidates drawn from q, with or without replacement.

    Exact up to rounding, but for more than two candidates without replacement from more than 1024 tokens: there rare
    tokens share steps, which moved the result by 1e-6 on distributions like a language model's and by 1e-4 on nearly
    flat ones.
    """
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    inside = q > _NEVER  # a token that is never drawn only adds p to H
    p, q = p[inside], q[inside]
    order = np.argsort(p / q)
    p, q = p[order], q[order]
    count = count if replacement else min(count, q.size)
    if replacement or count == 1:
        caught = np.cumsum(q) ** count
    elif count == 2:
        caught = _pairs(q)
    else:
        p, q, caught = _race(p, q, count)
    return float(1.0 + min(0.0, (np.cumsum(p) - np.minimum(caught, 1.0)).min(initial=0.0)))


def acceptance_can_be_one(p: ArrayLike, q: ArrayLike, count: int = 2) -> bool:
    """Whether some exact rule accepts one of `count` independent draws always: p(S) >= q(S)^count for every set S."""
    return alpha_star(p, q, count) > 1.0 - 1e-12


def alpha_top_then_sampled(p: ArrayLike, q: ArrayLike, count: int) -> float:
    """The optimum for the count - 1 most likely tokens and one draw from the rest: p(Top) + sum min(p, q')."""
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    top = np.argsort(-q, kind="stable")[: count - 1]
    rest = q.copy()
    rest[top] = 0.0
    overlap = np.minimum(p, rest / rest.sum()).sum() if rest.sum() > 0 else 0.0
    return float(p[top].sum() + overlap)


def _pairs(q: Array) -> Array:
    """Q of every prefix for two draws without replacement: sum over i in H of q_i (q(H) - q_i) / (1 - q_i)."""
    odds = q / np.maximum(1.0 - q, 1e-300)
    return np.cumsum(q) * np.cumsum(odds) - np.cumsum(q * odds)


def _race(p: Array, q: Array, count: int) -> tuple[Array, Array, Array]:
    """Q of prefixes for K > 2 draws without replacement, with the p and q of each step.

    Token i arrives at an Exp(q_i) time and the first K arrivals are the candidates, so with r = 1 - q(H)
    Q(H) = int r e^{-r t} Pr[at least K of H arrived by t] dt, a trapezoid sum over log t.
    """
    p, q, shared = _steps(p, q)
    rest = np.append(np.cumsum(q[:0:-1])[::-1], 0.0)  # summed from the far end, where it is small
    sure, caught = np.cumsum(p), np.zeros(q.size)
    near = int((rest > _NEAR).sum()) if shared.any() else 0
    caught[:near] = _caught(q[:near], shared[:near], rest[:near], count)
    # Longer prefixes catch at most what they would with replacement.
    least = (sure - (1.0 - rest) ** count)[near:].min(initial=0.0)
    if least < (sure - caught)[:near].min(initial=0.0):
        caught[:-1] = _caught(q[:-1], shared[:-1], rest[:-1], count)
        caught[-1] = 1.0
    return p, q, caught


def _caught(q: Array, shared: NDArray[np.bool_], rest: Array, count: int) -> Array:
    """Q of prefixes by the integral above; `rest` is what each leaves of q.

    The rule's error on a grid of spacing h is about exp(-pi^2 / h), and what comes before t about t^(K + 1).
    """
    if q.size == 0:
        return rest
    error = _MERGED if shared.any() else _EXACT
    spacing = np.pi**2 / -np.log(error)
    t = np.exp(np.arange(np.log(error) / (count + 1), np.log(50.0 / rest[-1]), spacing))
    few = _few_arrived(q, shared, t, count)  # [steps, times]
    return np.asarray(spacing * (rest[:, None] * np.exp(-rest[:, None] * t) * t * (1.0 - few)).sum(axis=1))


def _steps(p: Array, q: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Tokens in order, runs of rare ones merged: (p, q, whether a step is shared by several tokens)."""
    if q.size <= _SINGLE + _SHARED:
        return p, q, np.zeros(q.size, dtype=bool)
    rare = np.ones(q.size, dtype=bool)
    rare[np.argpartition(-q, _SINGLE)[:_SINGLE]] = False
    per_step = -(-int(rare.sum()) // _SHARED)
    run = np.cumsum(rare) // per_step  # rare tokens share a step until it is full or a frequent token comes
    begin = np.flatnonzero(~rare | np.roll(~rare, 1) | (np.diff(run, prepend=-1) > 0))
    return np.add.reduceat(p, begin), np.add.reduceat(q, begin), rare[begin]


def _few_arrived(q: Array, shared: NDArray[np.bool_], t: Array, count: int) -> Array:
    """[steps, times] Pr[fewer than `count` arrivals among the first steps by time t].

    A step is a truncated polynomial in the number of arrivals: (e^-x, 1 - e^-x) for a token, Poisson(x) for many rare
    ones, x = q t. Prefix products run blockwise: inside all blocks at once, then over the blocks.
    """
    length = max(1, int(np.sqrt(q.size)))
    blocks = -(-q.size // length)
    x = np.zeros((blocks * length, t.size))
    x[: q.size] = q[:, None] * t
    many = np.zeros(blocks * length, dtype=bool)
    many[: q.size] = shared
    steps = _arrivals(x, many, count).reshape(blocks, length, -1, t.size)  # [blocks, length, terms, times]
    inner = np.empty((blocks, length, count, t.size))
    running = np.zeros((blocks, count, t.size))
    running[:, 0] = 1.0
    for i in range(length):
        running = inner[:, i] = _times(running, steps[:, i])
    before = np.zeros((blocks, count, t.size))
    before[0, 0] = 1.0
    for b in range(1, blocks):
        before[b] = _times(before[b - 1 : b], inner[b - 1, -1:])[0]
    # Fewer than K in all: i before the block and at most K - 1 - i inside.
    few = np.einsum("bkt,blkt->blt", before, inner.cumsum(axis=2)[:, :, ::-1])
    return few.reshape(-1, t.size)[: q.size]


def _arrivals(x: Array, many: NDArray[np.bool_], count: int) -> Array:
    """[steps, terms, times] probabilities of 0, 1, .. arrivals in each step; two terms unless some step is shared."""
    terms = count if many.any() else min(2, count)
    none = np.exp(-x)
    distribution = np.zeros((x.shape[0], terms, x.shape[1]))
    distribution[:, 0], distribution[:, 1] = none, 1.0 - none
    poisson = none[many]
    for c in range(1, terms):
        with np.errstate(under="ignore"):
            poisson = poisson * x[many] / c
        distribution[many, c] = poisson
    return distribution


def _times(a: Array, b: Array) -> Array:
    """Products of polynomials along axis 1, cut to the terms of `a`."""
    out = np.zeros(np.broadcast_shapes(a.shape, (b.shape[0], a.shape[1], a.shape[2])))
    for c in range(b.shape[1]):
        out[:, c:] += a[:, : a.shape[1] - c] * b[:, c : c + 1]
    return out
