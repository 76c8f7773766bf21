"""Traces in the API's form: per step, who wrote each token and which draft tree it came from."""

from __future__ import annotations

from typing import Any

from ...models import TextStream, Tokenizer
from ...types import Event, Reason, StepTrace

Document = dict[str, Any]
TARGET = "target"  # the reason of a token that was written without any draft


def token_text(tokenizer: Tokenizer, before: int, token: int) -> str:
    """The text of a token in its place; some tokenizers write the first token of a text unlike the others."""
    known = tokenizer.decode([before], skip_special=False)
    return tokenizer.decode([before, token], skip_special=False).removeprefix(known)


class Tracer:
    """Follows one choice of an answer. The texts of its tokens add up to the answer, stop strings included."""

    def __init__(self, tokenizer: Tokenizer, before: int) -> None:
        self._tokenizer, self._text = tokenizer, TextStream(tokenizer)
        self._root = before  # the token that the step's draft tree hangs on

    def push(self, event: Event) -> list[Document]:
        """The step of an event, or nothing if it was not traced."""
        if event.trace is None:
            return []
        step = {"tokens": self._tokens(event, event.trace), "tree": self._tree(event.trace)}
        if event.finish_reason is not None and step["tokens"]:
            step["tokens"][-1]["text"] += self._text.flush()
        self._root = event.token_ids[-1] if event.token_ids else self._root
        return [step]

    def _tokens(self, event: Event, trace: StepTrace) -> list[Document]:
        found, before = [], self._root
        written = zip(event.token_ids, event.reasons, trace.rank, trace.probability, strict=True)
        for token, reason, rank, probability in written:
            rejected = trace.rejected() if reason in (Reason.CORRECTED, Reason.ABSTAINED) else []
            found.append(
                {
                    "text": self._text.push([token]),
                    "reason": reason.name.lower() if trace.token else TARGET,
                    "rank": rank,
                    "probability": probability,
                    "rejected": [token_text(self._tokenizer, before, other) for other in rejected],
                }
            )
            before = token
        return found

    def _tree(self, trace: StepTrace) -> list[Document]:
        accepted = set(trace.path)
        nodes = []
        for index, (token, parent) in enumerate(zip(trace.token, trace.parent, strict=True)):
            before = self._root if parent < 0 else trace.token[parent]
            text = token_text(self._tokenizer, before, token)
            nodes.append({"parent": parent, "text": text, "accepted": index in accepted})
        return nodes
