"""The two kinds of response of the API: chat and completions, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from .assemble import Piece, TokenScore
from .schema import ChatBody, CompletionBody, Generation
from .tools import whole_calls

Document = dict[str, Any]


class ChatResponse:
    """chat.completion and chat.completion.chunk"""

    def __init__(self, body: ChatBody, fingerprint: str) -> None:
        self._body, self._scored = body, bool(body.logprobs)
        self._head = _head(body.model, "chatcmpl", fingerprint)

    def whole(self, pieces: list[Piece], usage: Document) -> Document:
        choices = []
        for piece in pieces:
            message: Document = {"role": "assistant", "content": piece.text, "refusal": None}
            if piece.calls:
                message |= {"content": None, "tool_calls": whole_calls(piece.calls)}
            choices.append(self._choice(piece, {"message": message}))
        return self._head | {"object": "chat.completion", "choices": choices, "usage": usage}

    def opening(self, index: int) -> Document:
        """The first chunk of a choice says who speaks."""
        piece = Piece(index)
        return self._chunk([self._choice(piece, {"delta": {"role": "assistant", "content": ""}})])

    def chunk(self, piece: Piece) -> Document:
        delta: Document = {"content": piece.text} if piece.text else {}
        if piece.calls:
            delta["tool_calls"] = [call.as_json() for call in piece.calls]
        return self._chunk([self._choice(piece, {"delta": delta})])

    def closing(self, usage: Document) -> Document:
        return self._chunk([]) | {"usage": usage}

    def _chunk(self, choices: list[Document]) -> Document:
        return self._head | {"object": "chat.completion.chunk", "choices": choices}

    def _choice(self, piece: Piece, content: Document) -> Document:
        scores = {"content": [_chat_score(score) for score in piece.scores], "refusal": None} if self._scored else None
        choice = {"index": piece.index, **content, "logprobs": scores, "finish_reason": piece.finish_reason}
        return choice | _extras(piece, self._body)


class CompletionResponse:
    """text_completion, the same whole or in chunks. `echo` holds the prompts' texts, choice by choice, if wanted;
    `read` gives the scores of a choice's prompt, once it was read.
    """

    def __init__(
        self, body: CompletionBody, echo: list[str], fingerprint: str, read: Callable[[int], list[TokenScore]]
    ) -> None:
        self._body, self._echo, self._read = body, echo, read
        self._head = _head(body.model, "cmpl", fingerprint) | {"object": "text_completion"}
        self._alternatives = body.logprobs
        self._written: dict[int, int] = {}  # choice -> characters of its scored tokens so far

    def whole(self, pieces: list[Piece], usage: Document) -> Document:
        choices = []
        for piece in pieces:
            whole = self._before(piece.index)
            whole.add(piece)
            choices.append(self._choice(whole))
        return self._head | {"choices": choices, "usage": usage}

    def opening(self, index: int) -> Document | None:
        return self.chunk(self._before(index)) if self._echo else None

    def chunk(self, piece: Piece) -> Document:
        return self._head | {"choices": [self._choice(piece)]}

    def closing(self, usage: Document) -> Document:
        return self._head | {"choices": [], "usage": usage}

    def _before(self, index: int) -> Piece:
        """What stands before the answer itself."""
        if not self._echo:
            return Piece(index)
        return Piece(index, self._echo[index], scores=[] if self._alternatives is None else self._read(index))

    def _choice(self, piece: Piece) -> Document:
        scores = None if self._alternatives is None else self._scores(piece)
        choice = {"index": piece.index, "text": piece.text, "logprobs": scores, "finish_reason": piece.finish_reason}
        return choice | _extras(piece, self._body)

    def _scores(self, piece: Piece) -> Document:
        """Parallel lists; the written token is among the top ones or comes in addition."""
        offset = self._written.get(piece.index, 0)
        offsets, tops = [], []
        for score in piece.scores:
            offsets.append(offset)
            offset += score.added
            known = score.logprob is not None
            tops.append({score.text: score.logprob} | dict(reversed(score.alternatives)) if known else None)
        self._written[piece.index] = offset
        return {
            "tokens": [score.text for score in piece.scores],
            "token_logprobs": [score.logprob for score in piece.scores],
            "top_logprobs": tops if self._alternatives else None,
            "text_offset": offsets,
        }


def _head(model: str, prefix: str, fingerprint: str) -> Document:
    head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
    return head | {"system_fingerprint": fingerprint}


def _extras(piece: Piece, body: Generation) -> Document:
    """Fields of a choice that OpenAI has not, for those who asked for them."""
    ids = {"token_ids": piece.token_ids} if body.return_token_ids else {}
    traced = body.speculation is not None and body.speculation.trace
    return ids | ({"speculation": piece.steps} if traced else {})


def _chat_score(score: TokenScore) -> Document:
    alternatives = [_named(text, logprob) for text, logprob in score.alternatives]
    return _named(score.text, score.logprob) | {"top_logprobs": alternatives}


def _named(text: str, logprob: float | None) -> Document:
    """A token by its text and bytes; a part of a character has no bytes that its text could tell."""
    whole = "\N{REPLACEMENT CHARACTER}" not in text
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}
