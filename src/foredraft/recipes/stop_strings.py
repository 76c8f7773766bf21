"""Stop strings: where in the tokens an answer ends when its text must not contain certain strings."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ..models import TextStream, Tokenizer


class StopFinder:
    """Asked after every round; reads each token once."""

    def __init__(self, tokenizer: Tokenizer, stops: Seq[str]) -> None:
        self.stops = tuple(s for s in stops if s)
        self._stream = TextStream(tokenizer)
        self._reach = max((len(s) for s in self.stops), default=0)
        self._tail = ""  # the end of the text so far, as long as a stop string may reach back
        self._read = 0

    def __call__(self, output: list[int]) -> int | None:
        """Tokens to keep if a stop string has appeared: the fewest whose text contains it."""
        for token in output[self._read :]:
            self._read += 1
            self._tail += self._stream.push([token])
            if any(stop in self._tail for stop in self.stops):
                return self._read
            self._tail = self._tail[-self._reach :] if self._reach else ""
        return None

    def pending(self, text: str) -> int:
        """Characters at the end of the text that could still become a stop string."""
        return max((n for s in self.stops for n in range(1, len(s) + 1) if text.endswith(s[:n])), default=0)

    def cut(self, text: str) -> str:
        """The text before the first stop string."""
        places = [text.find(stop) for stop in self.stops if stop in text]
        return text[: min(places)] if places else text


class StreamedText:
    """The text of a streamed answer; holds back what may turn out to be the beginning of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: Seq[str]) -> None:
        self._stream = TextStream(tokenizer)
        self._finder = StopFinder(tokenizer, stops)
        self._held = ""

    def push(self, ids: Seq[int], last: bool) -> str:
        """Text that is certain after these tokens; everything that is left if they are the last."""
        self._held += self._stream.push(ids)
        if last:
            self._held += self._stream.flush()
            out, self._held = self._finder.cut(self._held), ""
            return out
        keep = self._finder.pending(self._held)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out
