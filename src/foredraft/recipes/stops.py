"""Stop strings: where in the tokens an answer ends when its text must not contain certain strings."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ..models import Tokenizer


class StopFinder:
    """Asked after every round; decodes only the newest part of the output."""

    def __init__(self, tokenizer: Tokenizer, stops: Seq[str]) -> None:
        self.tokenizer, self.stops = tokenizer, tuple(s for s in stops if s)
        self._reach = max((len(s) for s in self.stops), default=0)
        self._checked = 0  # tokens whose text is known to be clean

    def __call__(self, output: list[int]) -> int | None:
        """Tokens to keep if a stop string has appeared: the fewest whose text contains it."""
        # Every token adds at least a byte of text, so this many tokens back a stop string cannot reach.
        begin = max(0, self._checked - 4 * self._reach - 4)
        if not self._found(self.tokenizer.decode(output[begin:])):
            self._checked = len(output)
            return None
        for end in range(self._checked, len(output) + 1):
            if self._found(self.tokenizer.decode(output[begin:end])):
                return end
        return None

    def _found(self, text: str) -> bool:
        return any(stop in text for stop in self.stops)

    def cut(self, text: str) -> str:
        """The text before the first stop string."""
        places = [text.find(stop) for stop in self.stops if stop in text]
        return text[: min(places)] if places else text
