"""Constrained decoding stays exact under speculation: by enumeration on tables, and with JSON schemas on a model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from foredraft import LLM, SamplingParams, UsageError
from foredraft.core.distributions.masks import RowMasks, pack_bits
from foredraft.core.rng.enumerating import EnumeratingRng, outcomes
from foredraft.core.verify import RULES, default_rule
from foredraft.engine import Engine, Method
from foredraft.serve.grammars.json_grammar import ANY_OBJECT, JsonGrammars
from tests.engine.runs import finish, one, request
from tests.engine.test_joint_distribution import DRAFTERS, TARGET, TOKENS, pairs
from tests.kit.executor import TableExecutor

Allowed = Callable[[list[int]], list[int]]


class ToyGrammar:
    """A language as a function from an output to the tokens that may follow it."""

    def __init__(self, allowed: Allowed, vocab: int = 3) -> None:
        self.allowed, self.vocab = allowed, vocab

    def start(self) -> ToyGrammar:
        return self

    def fill(self, output: list[int], tokens: list[int], parents: list[int], bits: Tensor) -> None:
        paths = {-1: output}
        for node in range(-1, len(tokens)):
            if node >= 0:
                above = paths.get(parents[node])
                if above is None or tokens[node] not in self.allowed(above):
                    continue  # after a forbidden token anything may stand
                paths[node] = [*above, tokens[node]]
            row = torch.zeros((1, self.vocab), dtype=torch.bool)
            row[0, self.allowed(paths[node])] = True
            bits[node + 1] = pack_bits(row)[0]


def no_repeats(output: list[int]) -> list[int]:
    """Never the same token twice in a row, and token 2 only at even places."""
    banned = {output[-1]} if output else set()
    return [t for t in range(3) if t not in banned and (t != 2 or len(output) % 2 == 0)]


GRAMMAR = ToyGrammar(no_repeats)


def constrained_joint(tokens: int) -> np.ndarray:
    distribution = np.zeros((3,) * tokens)
    for text in itertools.product(range(3), repeat=tokens):
        chance = 1.0
        for i, token in enumerate(text):
            p = TARGET.next_distribution((0, 1, *text[:i])) * np.isin(np.arange(3), no_repeats(list(text[:i])))
            chance *= p[token] / p.sum()
        distribution[text] = chance
    return distribution


def short_pairs() -> list[Any]:
    """Every rule for chains, and the common rule for some drafters; the rest of the product takes a minute."""
    common = [("plain", "sample-and-match"), ("chosen tree", "sample-and-match"), ("lookup", "sample-and-match")]
    short = [pair for pair in pairs() if pair[0] == "chain of 1" or pair in common]
    return [pytest.param(*pair, marks=() if pair in short else pytest.mark.slow) for pair in pairs()]


@pytest.mark.parametrize(("drafter", "rule"), short_pairs())
def test_texts_follow_the_target_within_the_grammar(drafter: str, rule: str) -> None:
    """The joint distribution of three tokens is the product of the target's distributions, each cut to the grammar."""
    distribution = np.zeros((3,) * TOKENS)

    def run(rng: EnumeratingRng) -> list[int]:
        method = Method("m", RULES[rule], DRAFTERS[drafter]())
        return one(TableExecutor(TARGET), method, TOKENS, rng, temperature=1.0, grammar=GRAMMAR)

    for weight, text in outcomes(run):
        distribution[tuple(text)] += weight
    assert np.abs(distribution - constrained_joint(TOKENS)).max() < 1e-6


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_constrained_greedy_with_drafts_is_constrained_greedy_without(drafter: str) -> None:
    made = DRAFTERS[drafter]()
    rule = RULES["sample-and-match"] if made is None else default_rule(made.kinds, made.topology)
    expected: list[int] = []
    for _ in range(16):
        p = TARGET.next_distribution((0, 1, *expected)) * np.isin(np.arange(3), no_repeats(expected))
        expected.append(int(p.argmax()))
    assert one(TableExecutor(TARGET), Method("m", rule, made), 16, grammar=GRAMMAR) == expected


def test_a_grammar_is_its_requests_own_affair() -> None:
    """In one batch with a constrained request, a free one writes what it writes alone."""
    method = Method("m", RULES["sample-and-match"], DRAFTERS["lookup"]())
    free = request([0, 1], method, 1, max_new_tokens=20, temperature=1.0, seed=4)
    held = request([0, 1], method, 2, max_new_tokens=20, temperature=1.0, seed=4, grammar=GRAMMAR)
    together = finish(Engine(TableExecutor(TARGET, max_slots=2)), free, held)
    for n, grammar in enumerate((None, GRAMMAR)):
        alone = request([0, 1], method, 3 + n, max_new_tokens=20, temperature=1.0, seed=4, grammar=grammar)
        assert finish(Engine(TableExecutor(TARGET)), alone)[0] == together[n]
    assert together[0] != together[1]


def test_a_dead_end_is_that_requests_error() -> None:
    stuck = ToyGrammar(lambda output: [0, 1] if len(output) < 3 else [])
    method = Method("m", RULES["sample-and-match"], DRAFTERS["lookup"]())
    bad, good = request([0, 1], method, 1, grammar=stuck), request([0, 1], method, 2, max_new_tokens=9)
    finish(Engine(TableExecutor(TARGET, max_slots=2)), bad, good)
    assert bad.finish_reason == "error"
    assert good.finish_reason == "length"


def test_lossy_rules_and_endless_texts_are_refused() -> None:
    lossy = request([0, 1], Method("m", RULES["top-k"], DRAFTERS["lookup"]()), grammar=GRAMMAR)
    with pytest.raises(UsageError, match="lossy"):
        Engine(TableExecutor(TARGET)).add(lossy)
    with pytest.raises(UsageError, match="ignore_eos"):
        SamplingParams(grammar=GRAMMAR, ignore_eos=True)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 100])
def test_bits_are_packed_and_unpacked(vocab: int) -> None:
    allowed = torch.rand((5, vocab), generator=torch.Generator().manual_seed(vocab)) < 0.5
    masks = RowMasks(pack_bits(allowed), torch.arange(5)[:, None].flip(0), vocab)
    assert torch.equal(masks.at(torch.zeros(5, dtype=torch.int64)), allowed.flip(0))


# --- JSON schemas ---------------------------------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LLM:
    return LLM(str(tiny), "plain", dtype="fp32", batch_size=4)


@pytest.fixture(scope="module")
def grammars(llm: LLM) -> JsonGrammars:
    return JsonGrammars(llm.tokenizer, llm.engine.executor.vocab_size, llm.target.eos_ids)


def test_rows_of_a_tree_are_what_each_path_alone_allows(llm: LLM, grammars: JsonGrammars) -> None:
    """The mask after every node of a tree, by trial and return, against a fresh walk down its path."""
    ids = llm.tokenizer.encode('{"name": "Bob", "age": 4', add_special=False)
    wrong = llm.tokenizer.encode("]", add_special=False)[0]
    cut = len(ids) // 2
    tokens = [*ids[cut:], wrong, ids[cut], 2]
    parents = [*range(-1, len(ids) - cut - 1), 0, len(ids) - cut, -1]
    words = -(-llm.engine.executor.vocab_size // 32)
    bits = torch.full((len(tokens) + 1, words), -1, dtype=torch.int32)
    grammars.of(PERSON).start().fill(ids[:cut], tokens, parents, bits)
    for node in range(-1, len(ids) - cut):
        fresh = torch.full((1, words), -1, dtype=torch.int32)
        grammars.of(PERSON).start().fill(ids[: cut + node + 1], [], [], fresh)
        assert torch.equal(bits[node + 1], fresh[0]), node
        assert (fresh != 0).any()
    assert (bits[-3:] == -1).all()  # after a forbidden token, below it, and after the end of the text


@pytest.mark.parametrize("method", ["prompt-lookup", "suffix", "draft-model"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_schemas_hold_with_and_without_drafts(
    llm: LLM, grammars: JsonGrammars, method: str, temperature: float
) -> None:
    """The same text and valid JSON. The prompts hold JSON, so that there is something to draft."""
    prompts = ['{"name": "Bob", "age": 41}\n' * 2, '[{"name": "Al", "age": 7}, ', "nothing of the kind"]
    params = SamplingParams(temperature=temperature, seed=3, max_new_tokens=60, grammar=grammars.of(PERSON))
    rule = RULES["sample-and-match"]
    drafted = llm.generate(prompts, params, method=Method("m", rule, llm.build(method).drafter))
    plain = llm.generate(prompts, params)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.stats.drafted for c in drafted) > 0
    for completion in drafted:
        assert completion.finish_reason == "stop"
        person = json.loads(completion.text)
        assert set(person) == {"name", "age"}
        assert isinstance(person["age"], int)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"$ref": "https://example.org/x"},
        {"pattern": "(", "type": "string"},
        {"not": {}},
        {"enum": ["x" * 100] * 1000},
    ],
    ids=lambda schema: next(iter(schema)),
)
def test_schemas_that_cannot_be_obeyed_are_refused(grammars: JsonGrammars, schema: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="schema cannot be used"):
        grammars.of(schema)


def test_a_schema_that_is_too_much_ends_its_request_alone(llm: LLM, grammars: JsonGrammars) -> None:
    many = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1000)}}
    params = [SamplingParams(max_new_tokens=9, grammar=grammars.of(many)), SamplingParams(max_new_tokens=9)]
    bad, good = llm.generate(["x", "x"], params)
    assert bad.error is not None
    assert good.error is None


def test_any_object(llm: LLM, grammars: JsonGrammars) -> None:
    params = SamplingParams(max_new_tokens=8, grammar=grammars.of(ANY_OBJECT))
    assert llm.generate("x", params)[0].text.lstrip().startswith("{")
