"""What the tests of composed drafters share: table targets, plain text, and runs of a drafter beside it."""

from __future__ import annotations

from collections.abc import Callable

from foredraft.core.verify import RULES, Rule, default_rule
from foredraft.draft import Drafter
from foredraft.engine import Engine, Method, Request
from foredraft.types import Budget, SamplingParams, Sequence
from tests.engine.runs import finish, request
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, continued, dirichlet

TARGET = dirichlet(4, seed=5, alpha=0.5)  # never says the same thing twice
LOOPING = continued(dirichlet(4, seed=9, alpha=0.5), (), reach=2)  # greedy text runs into a loop
PROMPTS = [[0], [1, 2, 3, 0, 1], [3, 3]]


def greedy(model: TableModel, text: list[int], count: int) -> list[int]:
    """The model's most likely text."""
    out: list[int] = []
    for _ in range(count):
        out.append(int(model.next_distribution(text + out).argmax()))
    return out


def run(drafter: Drafter, target: TableModel, batch: int, after: Callable[[Engine], None] | None = None) -> int:
    """Greedy requests of different lengths in batches: all must write the target's own text. Returns nodes drafted."""
    method = Method("m", default_rule(drafter.kinds, drafter.topology), drafter)
    engine = Engine(TableExecutor(target, max_slots=batch, max_length=128))
    requests = [request(prompt, method, i, max_new_tokens=11 + 2 * i) for i, prompt in enumerate(PROMPTS)]
    for each in requests:
        engine.add(each)
    while not engine.scheduler.idle:
        engine.step()
        if after is not None:
            after(engine)
    for each, prompt in zip(requests, PROMPTS, strict=True):
        assert each.sequence.output == greedy(target, prompt, each.sequence.params.max_new_tokens)
    return sum(each.stats.drafted for each in requests)


def single(drafter: Drafter, target: TableModel, tokens: int, rule: Rule | None = None, **params: object) -> Request:
    """One request on its own engine, finished."""
    method = Method("m", rule or RULES["sample-and-match"], drafter)
    each = request([0, 1], method, max_new_tokens=tokens, **params)
    finish(Engine(TableExecutor(target, max_length=256)), each)
    return each


def text_of(tokens: list[int], number: int = 0, nodes: int = 16, depth: int = 16) -> Sequence:
    """A sequence that may draft."""
    made = Sequence(number, list(tokens), len(tokens), SamplingParams(), seed=0)
    made.budget = Budget(nodes, depth)
    return made
