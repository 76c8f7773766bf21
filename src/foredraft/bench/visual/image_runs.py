"""The comparison: the same classes and seeds for every method, many at a time for quality, one at a time for speed.

Speed is measured in turns, one image of every method after the other, so that all see the same machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.rng.keyed import Purpose
from ...core.verify import node_rule
from ...core.verify.tree_walk import Node, Step
from ...engine import Method
from ...errors import UsageError
from ...models.load.names import VISUAL, visual_folder
from ...models.visual import CLASSES, load_codec
from ...recipes import LLM
from ...types import Completion, SamplingParams, Stats
from ..entries import ALONE, PLAIN
from ..results.intervals import ratio_of_rates
from .frechet import ImageScorer

USUAL = (
    PLAIN,
    "eagle2",
    "eagle:shape=lantern:drawn=true",
    "lantern:shape=eagle2,mass=0.1,k=100",
    "lantern:shape=eagle2,mass=0.2,k=100",
    "lantern:lam=2",
    "lantern",
    "lantern:lam=10",
    "lantern:lam=20",
    ALONE,
)
Progress = Callable[[str, int, int], None]  # what, done, of how many


def _accept_all(node: Node) -> Step:
    """What the drafter says, goes; the target writes only where there is no draft."""
    if node.children:
        return node.accept(node.children[0])
    return node.emit(node.rng.draw(node.p, Purpose.OWN, node.index))


ACCEPT_ALL = node_rule("accept-all", _accept_all, summary="every draft passes")


@dataclass(frozen=True, slots=True)
class ImageOrder:
    """What to compare, and on how many images."""

    model: str
    methods: tuple[str, ...] = USUAL
    images: int = 1000  # for quality
    timed: int = 50  # for speed
    batch_size: int = 32
    temperature: float = 1.0
    guidance: float | None = None
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"

    def llm(self, batch_size: int) -> LLM:
        place: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "guidance": self.guidance}
        return LLM(self.model, PLAIN, batch_size=batch_size, **place)

    def prompts(self, count: int) -> tuple[list[str], list[SamplingParams]]:
        """Classes in turn, each image with a seed of its own."""
        names = [CLASSES[i % len(CLASSES)] for i in range(count)]
        params = [SamplingParams(self.temperature, seed=self.seed + i, max_new_tokens=1 << 20) for i in range(count)]
        return names, params


@dataclass(slots=True)
class ImageRow:
    """What was found of one method."""

    method: str
    exact: bool
    tokens_per_pass: float
    accepted: float  # drafted tokens a pass
    recognised: tuple[float, float, float]
    distance: float
    speed: float = 0.0  # tokens a second, one image at a time
    speedup: tuple[float, float, float] = (1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows, and the first images of every method for the picture."""

    rows: list[ImageRow]
    samples: dict[str, Tensor]  # [n, h, w] in 0 .. 1
    guidance: float
    dtype: str


def compare(order: ImageOrder, progress: Progress = lambda what, done, total: None, keep: int = 20) -> Comparison:
    """Draw with every method; `keep`: images of each that the picture shows."""
    folder = visual_folder(order.model)
    if folder is None:
        raise UsageError(f"{order.model!r} draws no images; use one of {', '.join(VISUAL)}")
    scorer, decoder, llm = ImageScorer(folder), load_codec(folder / "codec"), order.llm(order.batch_size)
    prompts, params = order.prompts(order.images)
    labels = torch.arange(order.images) % len(CLASSES)
    rows, samples = [], {}
    for name in order.methods:
        done = 0

        def tell(place: int, result: Completion, name: str = name) -> None:
            nonlocal done
            done += 1
            progress(name, done, order.images)

        method = method_of(llm, name)
        results = llm.generate(prompts, params, method=method, on_finish=tell)
        images = decoder.images(torch.tensor([result.token_ids for result in results]))
        samples[name] = images[:keep]
        rows.append(_row(name, method, results, scorer, images, labels))
    guided: Any = llm.target.executor
    return Comparison(timed(order, rows, progress), samples, guided.guidance.scale, llm.target.dtype)


def method_of(llm: LLM, name: str) -> Method:
    if name != ALONE:
        return llm.build(name)
    chain = llm.build(f"eagle:shape=chain,length={llm.target.executor.max_length - 2}")
    return replace(chain, name=ALONE, rule=ACCEPT_ALL)


def _row(
    name: str, method: Method, results: list[Completion], scorer: ImageScorer, images: Tensor, labels: Tensor
) -> ImageRow:
    total = Stats()
    for result in results:
        total.add(result.stats)
    quality = scorer.quality(images, labels)
    passes = max(total.steps, 1)
    figures = (total.emitted / passes, total.accepted / passes, quality.recognised, quality.distance)
    return ImageRow(name, method.exact, *figures)


def timed(order: ImageOrder, rows: list[ImageRow], progress: Progress) -> list[ImageRow]:
    """The rows with their speeds; the first image of each method warms it up."""
    llm = order.llm(1)
    methods = [method_of(llm, row.method) for row in rows]
    names, params = order.prompts(order.timed + 1)
    seen = np.zeros((len(rows), order.timed + 1, 2))
    for i, (prompt, options) in enumerate(zip(names, params, strict=True)):
        progress("speed, in turns", i, order.timed)
        for m, method in enumerate(methods):
            stats = llm.generate(prompt, options, method=method)[0].stats
            seen[m, i] = stats.emitted, stats.seconds
    plain = next((m for m, row in enumerate(rows) if row.method == PLAIN), 0)
    for m, row in enumerate(rows):
        tokens, seconds = seen[m, 1:].sum(axis=0)
        row.speed = float(tokens / seconds)
        row.speedup = ratio_of_rates(np.concatenate((seen[m, 1:], seen[plain, 1:]), axis=1))
    return rows
