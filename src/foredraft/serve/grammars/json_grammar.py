"""Output by grammar: llguidance says which tokens may come next, at every row of a draft tree.

JSON schemas, expressions, choices and tool calls are all grammars here.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Collection
from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from ...errors import UsageError
from ...models import Tokenizer
from ...types import Constraint
from .schema_compiler import compile_schema, load_tokens
from .schema_probe import SchemaProbe

Schema = dict[str, Any] | str  # a JSON schema, or a grammar as `schema_compiler` reads it
ANY_OBJECT = {"type": "object"}
MAX_SCHEMA = 1 << 16  # characters; longer ones take seconds to compile
KEPT_BYTES = 256 << 20  # of compiled schemas, as far as the probe measures it
KEPT = 32  # compiled schemas


class JsonGrammars:
    """Compiles schemas for one tokenizer. May be used from several threads.

    `check` a schema of a stranger first: it is tried in another process, with a `probe`.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int], probe: SchemaProbe | None = None
    ) -> None:
        self._source, self._vocab, self._eos, self._probe = tokenizer, vocab_size, frozenset(eos_ids), probe
        self._made: OrderedDict[str, JsonGrammar] = OrderedDict()
        self._bytes: dict[str, int] = {}  # what those take, where it is known
        self._lock = Lock()

    async def check(self, schema: Schema, client: str) -> None:
        """Refuse a schema that cannot be obeyed in full, or would take too much to compile."""
        key = self._key(schema)
        if self._probe is not None and key not in self._made:
            await self._probe.check(key, client, self._setup)

    def of(self, schema: Schema) -> JsonGrammar:
        """The grammar of a schema; one that cannot be obeyed in full is refused."""
        key = self._key(schema)
        made = self._made.get(key) or JsonGrammar(self._compile(key), self._eos)
        with self._lock:
            self._made[key] = made
            self._made.move_to_end(key)
            self._bytes.setdefault(key, 0 if self._probe is None else self._probe.size(key))
            while len(self._made) > KEPT or (len(self._made) > 1 and sum(self._bytes.values()) > KEPT_BYTES):
                self._bytes.pop(self._made.popitem(last=False)[0], None)
        return made

    def warm_up(self) -> None:
        """Read the tokenizer, for half a second and with the interpreter's lock, before a client waits for it."""
        with suppress(UsageError):  # a tokenizer that cannot be held to a schema
            self.of(ANY_OBJECT)
            if self._probe is not None:
                self._probe.warm_up(self._setup)

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()

    def _key(self, schema: Schema) -> str:
        # In its own order: properties are written in the order of the schema.
        key = schema if isinstance(schema, str) else json.dumps(schema)
        if len(key) > MAX_SCHEMA:
            raise UsageError(f"the schema cannot be used: it has more than {MAX_SCHEMA} characters")
        if not self._eos:
            raise UsageError("this model has no end token, so its output cannot be held to a schema")
        return key

    def _compile(self, schema: str) -> LLMatcher:
        try:
            return compile_schema(self._tokens, schema)
        except ValueError as error:
            raise UsageError(f"the schema cannot be used: {error}") from None

    @cached_property
    def _setup(self) -> dict[str, Any]:
        text = self._source.backend.to_str()
        return {"tokenizer": text, "vocab_size": self._vocab, "eos_ids": sorted(self._eos)}

    @cached_property
    def _tokens(self) -> LLTokenizer:
        """The tokenizer as llguidance reads it, only if somebody wants JSON."""
        try:
            return load_tokens(**self._setup)
        except Exception as error:
            raise UsageError(f"this model's tokenizer cannot be held to a schema: {error}") from None


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

    def forced(self, output: list[int]) -> list[int]:
        self._matcher.consume_tokens(output[self._read :])
        self._read = len(output)
        found: list[int] = [] if self._matcher.is_error() else self._matcher.compute_ff_tokens()
        return found

    def _visit(self, node: int, tokens: list[int], children: dict[int, list[int]], bits: Tensor) -> None:
        """Write the row after a node and the rows below it; leaves the matcher as it was."""
        row = bits[node + 1]
        self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), row.numel() * row.element_size())
        for child in children[node]:
            if tokens[child] not in self._eos and self._matcher.try_consume_tokens([tokens[child]]):
                self._visit(child, tokens, children, bits)
                self._matcher.rollback(1)
