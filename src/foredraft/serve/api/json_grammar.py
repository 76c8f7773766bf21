"""JSON output by grammar: llguidance says which tokens may come next, at every row of a draft tree."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Collection
from threading import Lock
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from ...errors import UsageError
from ...models import Tokenizer
from ...types import Constraint

# Between the parts of a document: nothing, a space, or a new line with an indent. Without an end to it, a small model
# may write white space for ever.
WHITE_SPACE = r"( |\n {0,16})?"
ANY_OBJECT = {"type": "object"}
MAX_SCHEMA = 1 << 16  # characters; longer ones take seconds to compile
_KEPT = 32  # compiled schemas


class JsonGrammars:
    """Compiles schemas for one tokenizer. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._source, self._vocab, self._eos = tokenizer, vocab_size, frozenset(eos_ids)
        self._tokens: LLTokenizer | None = None
        self._made: OrderedDict[str, JsonGrammar] = OrderedDict()
        self._lock = Lock()

    def of(self, schema: dict[str, Any]) -> JsonGrammar:
        """The grammar of a schema; one that cannot be obeyed in full is refused."""
        key = json.dumps(schema)  # in its own order: properties are written in the order of the schema
        if len(key) > MAX_SCHEMA:
            raise UsageError(f"the schema cannot be used: it has more than {MAX_SCHEMA} characters")
        made = self._made.get(key) or JsonGrammar(self._compile(key), self._eos)
        with self._lock:
            self._made[key] = made
            self._made.move_to_end(key)
            if len(self._made) > _KEPT:
                self._made.popitem(last=False)
        return made

    def _compile(self, schema: str) -> LLMatcher:
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITE_SPACE})
        except ValueError as error:
            raise UsageError(f"the schema cannot be used: {error}") from None
        matcher = LLMatcher(self._vocabulary(), grammar, log_level=0)
        if matcher.is_error():
            raise UsageError(f"the schema cannot be used: {_first_line(matcher.get_error())}")
        return matcher

    def _vocabulary(self) -> LLTokenizer:
        """The tokenizer as llguidance reads it; that takes a second, so only if somebody wants JSON."""
        if not self._eos:
            raise UsageError("this model has no end token, so its output cannot be held to a schema")
        if self._tokens is None:
            text, ends = self._source.backend.to_str(), sorted(self._eos)
            try:
                self._tokens = LLTokenizer(text, n_vocab=self._vocab, eos_token=ends)
            except Exception as error:
                raise UsageError(f"this model's tokenizer cannot be held to a schema: {error}") from None
        return self._tokens


class JsonGrammar:
    """A compiled schema."""

    def __init__(self, matcher: LLMatcher, eos_ids: frozenset[int]) -> None:
        self._matcher, self._eos, self._lock = matcher, eos_ids, Lock()

    def start(self) -> Constraint:
        with self._lock:
            return JsonConstraint(self._matcher.deep_copy(), self._eos)


class JsonConstraint:
    """A schema at work on one answer. Drafted tokens are tried and taken back."""

    def __init__(self, matcher: LLMatcher, eos_ids: frozenset[int]) -> None:
        self._matcher, self._eos, self._read = matcher, eos_ids, 0

    def fill(self, output: list[int], tokens: list[int], parents: list[int], bits: Tensor) -> None:
        self._matcher.consume_tokens(output[self._read :])
        self._read = len(output)
        if self._matcher.is_error():  # the schema was too much for the parser
            bits.zero_()  # the engine ends a request that may write nothing
            return
        children: dict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(parents):
            children[parent].append(node)
        self._visit(-1, tokens, children, bits)

    def _visit(self, node: int, tokens: list[int], children: dict[int, list[int]], bits: Tensor) -> None:
        """Write the row behind a node and the rows below it; leaves the matcher as it was."""
        row = bits[node + 1]
        self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), row.numel() * row.element_size())
        for child in children[node]:
            if tokens[child] not in self._eos and self._matcher.try_consume_tokens([tokens[child]]):
                self._visit(child, tokens, children, bits)
                self._matcher.rollback(1)


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[0]
