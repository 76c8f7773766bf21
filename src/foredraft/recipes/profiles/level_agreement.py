"""How often the next token of one model passes the review of another, on texts that the target wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.shapes.base import Vocabulary
from ...draft.retrieval.bigrams import Bigrams
from ...draft.retrieval.maxgram import MaxGram
from ...runtime import Executor, Rows
from ...types import Sequence as Text

CHUNK = 64  # rows of a pass


@dataclass(frozen=True, slots=True)
class Reader:
    """A model over texts; its own ids in the target's, if it has others."""

    executor: Executor
    vocabulary: Vocabulary | None = None

    @torch.no_grad()
    def logits(self, tokens: Sequence[int], begin: int) -> Tensor:
        """[n, V'] after each of tokens[begin:-1], which predict the tokens after them."""
        self.executor.rollback([0], [0])
        self.executor.prefill([0], [list(tokens[:begin])])
        found = []
        for first in range(begin, len(tokens) - 1, CHUNK):
            run = list(tokens[first : min(first + CHUNK, len(tokens) - 1)])
            found.append(self.executor.forward(Rows.chains([0], [run], self.executor.device)).logits.float())
            self.executor.commit([0], [len(run)])
        self.executor.rollback([0], [0])
        return torch.cat(found)

    def best(self, logits: Tensor) -> Tensor:
        """[n] target ids of the top tokens."""
        top = logits.argmax(dim=1)
        return top if self.vocabulary is None else self.vocabulary.ids[top]

    def passes(self, logits: Tensor, token: Tensor, lenience: float) -> Tensor:
        """[n] bool: the token (-1 = none) is the top one, or has more than 1 / lenience."""
        local = token.clamp(min=0)
        if self.vocabulary is not None:
            local = self.vocabulary.index[local]
        known = (token >= 0) & (local >= 0) & (local < logits.shape[1])
        share = logits.softmax(dim=1).gather(1, local.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        return (token == self.best(logits)) | (known & (share * lenience > 1))


def agreement(readers: Sequence[Reader], pairs: Bigrams, texts: Sequence[Text], lenience: float) -> list[list[float]]:
    """[reviewer][drafter] shares, the target first and text statistics last; the target itself is never lenient."""
    levels = len(readers) + 1
    passed, total = torch.zeros((len(readers), levels)), 0
    for text in texts:
        begin = text.prompt_length - 1
        if len(text.tokens) - 1 <= begin:
            continue
        logits = [reader.logits(text.tokens, begin) for reader in readers]
        guesses = [reader.best(rows) for reader, rows in zip(readers, logits, strict=True)]
        guesses.append(torch.tensor(looked_up(text, pairs), device=logits[0].device))
        total += len(guesses[0])
        for i, (reader, rows) in enumerate(zip(readers, logits, strict=True)):
            for j in range(i + 1, levels):
                passed[i, j] += reader.passes(rows, guesses[j], lenience if i else 1.0).sum().cpu()
    found: list[list[float]] = (passed / max(1, total)).tolist()
    return found


def looked_up(text: Text, pairs: Bigrams) -> list[int]:
    """What text statistics would put at every written place, -1 = nothing."""
    drafter, sofar = MaxGram(1, Bigrams(packed=pairs.packed)), replace(text, tokens=text.tokens[: text.prompt_length])
    drafter.begin([sofar])
    found = []
    for token in text.tokens[text.prompt_length :]:
        guess = drafter.continue_from([sofar], [[]], [1])[0]
        found.append(guess[0] if guess else -1)
        sofar.tokens.append(token)
    return found
