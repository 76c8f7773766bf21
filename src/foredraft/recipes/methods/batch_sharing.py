"""TETRIS as a method: requests that run side by side share what a pass verifies."""

from __future__ import annotations

import logging
from dataclasses import replace

from ...core.shapes.base import Chain, Shape
from ...core.trees.tetris import Score
from ...core.verify import Rule, default_rule
from ...draft.combine.tetris_drafter import TetrisDrafter
from ...errors import UsageError, unknown_name
from ..drafter_parts import model_or_head
from ..recipe import MODEL_OR_HEAD, Card, Options, Parts, PartsFactory, Recipe

log = logging.getLogger(__name__)
HEADS = ("fastdraft", "eagle3", "eagle")  # small models of their own first, as in the paper


def tetris(
    factory: PartsFactory, options: Options, *, extra: int = 2, capacity: int = 0, score: str = "shifted"
) -> Parts:
    """Drafts of the whole length, of which all but `extra` a request are verified, or `capacity` of all together."""
    known = {form.value: form for form in Score}
    if score not in known:
        raise unknown_name("score of method 'tetris'", score, known)
    if extra < 0 or capacity < 0:
        raise UsageError("method 'tetris': extra and capacity must not be negative")
    assert options.draft_length is not None
    base = max(1, options.draft_length - extra)
    if factory.target.executor.max_slots == 1:
        log.warning("tetris shares a pass among requests, and one runs at a time here: its drafter works alone")
        return Parts(model_or_head(factory, replace(options, draft_length=base), HEADS))
    drafter = TetrisDrafter(model_or_head(factory, options, HEADS, with_values), base, capacity, known[score])
    rule = default_rule(drafter.kinds, drafter.topology)
    return Parts(drafter, rule if known[score] is Score.SHIFTED else published(rule))


def with_values(shape: Shape) -> Shape:
    """Chains that come with estimates of what will be accepted of them."""
    return replace(shape, values=True) if isinstance(shape, Chain) else shape


def published(rule: Rule) -> Rule:
    """A p/q rule that meets chains whose cut has looked at the tokens that it dropped: lossy at temperature > 0."""
    summary = "p/q tests on chains that were cut by what their tokens are, as TETRIS was published (lossy)"
    return replace(rule, name="tetris-published", summary=summary, exact_for=frozenset(), lossy=True)


TETRIS = Recipe(
    "tetris",
    Card(
        "TETRIS",
        "Wu et al. 2025 (arXiv 2502.15197)",
        "chains of a batch, cut to the tokens most likely accepted + p/q rule; score=published is biased above T = 0",
        "+5.3% throughput over the best baseline",
        MODEL_OR_HEAD,
        needs="model or head",
        phrase="a batch's chains, cut to what fits",
        get="foredraft generate --method tetris --batch-size 8 --file prompts.txt",
    ),
    tetris,
    takes_drafter=True,
    takes_words=True,
    takes_stop=True,
    takes_length=False,
    defaults=Options(shape="chain", draft_length=6),
)
