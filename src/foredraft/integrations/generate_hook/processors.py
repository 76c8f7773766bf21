"""What the logits processors of a `generate()` call mean to our sampler: options, masks, or a refusal by name.

A processor sees the text before one token. Under speculation that is the text with the drafted ancestors of a node, so
processors that only forbid tokens become a grammar that asks them at every node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.distributions.masks import pack_bits
from ...errors import UsageError

# Processors that only set logits to -inf, whatever the logits are.
MASKS = {
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
}
NOTHING = {"LogitNormalization"}  # the distribution stays as it is
# Processor -> (its attribute, our option, its place: cuts must come in this order, since each renormalises).
OPTIONS = {
    "RepetitionPenaltyLogitsProcessor": ("penalty", "repetition_penalty", 0),
    "TemperatureLogitsWarper": ("temperature", "temperature", 0),
    "TopKLogitsWarper": ("top_k", "top_k", 1),
    "TopPLogitsWarper": ("top_p", "top_p", 2),
    "MinPLogitsWarper": ("min_p", "min_p", 3),
}
OWNER = "transformers.generation.logits_process"


def read_processors(processors: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Sampling options, and the processors that are masks; UsageError for one that cannot be honoured."""
    options: dict[str, Any] = {}
    masks, place = [], 0
    for processor in processors:
        name = type(processor).__name__
        known = type(processor).__module__ == OWNER
        if known and name in OPTIONS:
            attribute, option, at = OPTIONS[name]
            _check_usual(processor, name)
            if at < place or option in options:
                raise UsageError(f"{name} comes after a cut of the distribution or twice; use generate()'s own options")
            place, options[option] = at, getattr(processor, attribute)
        elif known and name in MASKS:
            if place:
                raise UsageError(f"{name} comes after a cut of the distribution; give it before top-k, top-p and min-p")
            masks.append(processor)
        elif not (known and name in NOTHING):
            raise UsageError(f"{name} cannot be honoured while drafting; leave it out, or call generate() without us")
    if "min_p" in options and "top_p" in options:
        raise UsageError("transformers cuts by top_p before min_p, foredraft after it; give one of them")
    return options, masks


def _check_usual(processor: Any, name: str) -> None:
    usual = {"filter_value": -float("inf"), "min_tokens_to_keep": 1, "prompt_ignore_length": None}
    for attribute, value in usual.items():
        given = getattr(processor, attribute, value)
        if given != value:
            raise UsageError(f"{name} with {attribute}={given} cannot be honoured while drafting; leave it out")


class ProcessorMasks:
    """Grammar and constraint at once: mask processors, asked about each row's own text."""

    def __init__(
        self, masks: Sequence[Callable[[Tensor, Tensor], Tensor]], prompt: Tensor, vocab: int, ends: Collection[int]
    ) -> None:
        """prompt: [1, n] the row of input_ids with its padding, as the processors would see it."""
        self._masks, self._prompt, self._vocab, self._ends = list(masks), prompt, vocab, frozenset(ends)

    def start(self) -> ProcessorMasks:
        return self

    def fill(self, output: list[int], tokens: list[int], parents: list[int], bits: Tensor) -> None:
        """A processor may raise about a text that it would have forbidden, or that has ended: such rows stay open."""
        found: list[tuple[list[int], Tensor] | None] = [(output, self.allowed(output))]
        for token, parent in zip(tokens, parents, strict=True):
            above = found[parent + 1]
            if above is None or token in self._ends or not bool(above[1][0, token]):
                found.append(None)
            else:
                text = [*above[0], token]
                found.append((text, self.allowed(text)))
        for row, each in enumerate(found):
            if each is not None:
                bits[row] = pack_bits(each[1])[0]

    def allowed(self, output: list[int]) -> Tensor:
        """[1, V] bool: the tokens that may follow an output."""
        added = torch.tensor([output], dtype=self._prompt.dtype, device=self._prompt.device)
        ids = torch.cat((self._prompt, added), dim=1)
        scores = torch.zeros((1, self._vocab), device=ids.device)
        for mask in self._masks:
            scores = mask(ids, scores)
        return (scores > -torch.inf).cpu()
