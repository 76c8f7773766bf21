"""What a benchmark asks: one `Question` with its turns, and what a scorer needs to mark the answer.

It knows neither where questions come from nor which model answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...models import Tokenizer


@dataclass(frozen=True, slots=True)
class Question:
    """One item of a task."""

    task: str
    id: str
    turns: tuple[str, ...]  # what the user says, turn by turn
    raw: bool = False  # a text to continue, without the chat template
    scorer: str = ""  # "" = not scored; otherwise a name of scoring.SCORERS
    reference: str = ""  # the right answer, or the unit tests
    stem: str = ""  # code that an answer may leave out, such as the head of the function

    def prompt(self, tokenizer: Tokenizer, turn: int, answers: tuple[str, ...]) -> list[int]:
        """Ids of one turn, after the answers to the turns before it."""
        if self.raw or tokenizer.chat_template is None:
            said = [text for pair in zip(self.turns, answers, strict=False) for text in pair]
            return tokenizer.encode("\n\n".join([*said, self.turns[turn]]))
        messages = []
        for question, answer in zip(self.turns[:turn], answers, strict=True):
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return tokenizer.encode_chat([*messages, {"role": "user", "content": self.turns[turn]}])
