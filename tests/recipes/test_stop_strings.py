"""Stop strings: found where brute force finds them, held back no longer than needed, in linear time."""

from __future__ import annotations

import random
import time

import pytest

from foredraft.recipes.stop_strings import StopMatcher, StreamedText, cut


class Letters:
    """A tokenizer whose tokens are characters."""

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        return "".join(map(chr, ids))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_matched_is_what_brute_force_matches(seed: int) -> None:
    rng = random.Random(seed)
    stop = "".join(rng.choice("ab") for _ in range(rng.randint(1, 6)))
    matcher, text = StopMatcher(stop), ""
    for _ in range(40):
        text += (char := rng.choice("ab"))
        found = matcher.push(char)
        assert found == (stop in text)
        if found:
            break
        assert matcher.matched == max(n for n in range(len(stop)) if text.endswith(stop[:n]))


@pytest.mark.parametrize("seed", range(20))
def test_streamed_pieces_add_up_to_the_text_before_the_stop(seed: int) -> None:
    rng = random.Random(seed)
    stops = ["".join(rng.choice("abc") for _ in range(rng.randint(1, 4))) for _ in range(3)]
    text = "".join(rng.choice("abcd") for _ in range(30))
    end = min((text.find(stop) + len(stop) for stop in stops if stop in text), default=len(text))
    stream, said = StreamedText(Letters(), stops), ""  # type: ignore[arg-type]
    for place in range(end):
        said += stream.push([ord(text[place])], place == end - 1)
        assert cut(text[:end], stops).startswith(said)
    assert said == cut(text[:end], stops)


def test_a_long_stop_string_takes_linear_time() -> None:
    """300,000 characters that nearly match everywhere, which once took 20 s for six tokens."""
    begun = time.process_time()
    stream = StreamedText(Letters(), ["a" * 300_000 + "b"])  # type: ignore[arg-type]
    for _ in range(6):
        stream.push([ord("a")] * 1000, False)
    assert time.process_time() - begun < 5
