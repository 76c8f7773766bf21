"""Stop strings: where in the tokens an answer ends when its text must not contain certain strings."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ..models import TextStream, Tokenizer


class StopMatcher:
    """Follows a text character by character: how much of one stop string its end matches (Knuth, Morris, Pratt 1977).

    Linear in the length of the text and of the string, whatever they are.
    """

    def __init__(self, stop: str) -> None:
        self.stop, self.matched = stop, 0
        self._border = [0] * (len(stop) + 1)  # length of the longest proper border of each prefix
        for end in range(1, len(stop)):
            self._border[end + 1] = self._after(self._border[end], stop[end])

    def _after(self, matched: int, char: str) -> int:
        while matched and self.stop[matched] != char:
            matched = self._border[matched]
        return matched + (self.stop[matched] == char)

    def push(self, text: str) -> bool:
        """Whether the text contains the stop string by now; nothing is read after its end."""
        for char in text:
            if self.matched == len(self.stop):
                break
            self.matched = self._after(self.matched, char)
        return self.matched == len(self.stop)


class StopFinder:
    """Asked after every round; reads each token once."""

    def __init__(self, tokenizer: Tokenizer, stops: Seq[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._matchers = [StopMatcher(stop) for stop in self._stops]
        self._stream = TextStream(tokenizer)
        self._read = 0

    def __call__(self, output: list[int]) -> int | None:
        """Tokens to keep if a stop string has appeared: the fewest whose text contains it."""
        for token in output[self._read :]:
            self._read += 1
            text = self._stream.push([token])
            if any([matcher.push(text) for matcher in self._matchers]):
                return self._read
        return None

    def cut(self, text: str) -> str:
        """The text before the first stop string."""
        return cut(text, self._stops)


class StreamedText:
    """The text of a streamed answer; holds back what may turn out to be the beginning of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: Seq[str]) -> None:
        self._stream = TextStream(tokenizer)
        self._matchers = [StopMatcher(stop) for stop in stops if stop]
        self._held = ""

    def push(self, ids: Seq[int], last: bool) -> str:
        """Text that is certain after these tokens; everything that is left if they are the last."""
        new = self._stream.push(ids) + (self._stream.flush() if last else "")
        self._held += new
        for matcher in self._matchers:
            matcher.push(new)
        if last:
            out, self._held = cut(self._held, [matcher.stop for matcher in self._matchers]), ""
            return out
        keep = max((matcher.matched for matcher in self._matchers), default=0)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out


def cut(text: str, stops: Seq[str]) -> str:
    """The text before the first stop string."""
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text
