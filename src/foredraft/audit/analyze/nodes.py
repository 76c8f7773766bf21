"""What a drafter and the rules are worth on given prompts: overlap of p and q, acceptance of each rule, the optimum.

Nodes are the positions of texts that the target writes. It answers which rule, how many candidates, and whether the
drafter or the rule is the limit, and names the options that run what it recommends. It knows nothing of speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...core.distributions.sampling import ParamBlock, distribution_of
from ...core.shapes.base import Chain
from ...core.verify import RULES
from ...draft.neural.draft_model import TREE_TEMPERATURE, ModelDrafter
from ...models import Progress as Loading
from ...recipes import LLM
from ...recipes.loading import Place
from ...recipes.recipe import PartsFactory, draft_executor
from ...runtime import Executor, Rows
from ...types import Kind, SamplingParams
from ..enumerate.table_model import Array
from .closed_forms import FORMS, acceptance, optimum

IID, DRAWN, TOP, CHOSEN = Kind.SAMPLED_IID, Kind.SAMPLED_WITHOUT_REPLACEMENT, Kind.TOP_THEN_SAMPLED, Kind.CHOSEN
KINDS = {IID: "independent draws", DRAWN: "draws without replacement", TOP: "top k - 1 and a draw", CHOSEN: "top k"}
# Shapes that draft so many candidates of a kind at the first position.
SHAPES = {
    IID: "independent:branching={}",
    DRAWN: "static:branching={},drawn=true",
    TOP: "top-then-drawn:branching={}",
    CHOSEN: "static:branching={}",
}
MOST = 8  # candidates up to which the optimum is followed
WORTH = 0.01  # acceptance that one more candidate should add


@dataclass(frozen=True, slots=True)
class Node:
    """One position of a text: the target's distribution and the drafter's."""

    position: int  # in the continuation, from 1
    p: Array
    q: Array

    @property
    def overlap(self) -> float:
        """1 - total variation: what the single-draft test accepts."""
        return float(np.minimum(self.p, self.q).sum())


@dataclass(frozen=True, slots=True)
class Question:
    """What to analyse."""

    model: str
    drafter: str | None
    prompts: tuple[str, ...]
    temperature: float = 1.0
    candidates: int = 4
    tokens: int = 16  # nodes per prompt
    draws: int = 8  # series of candidates per node
    dtype: str = "auto"
    device: str = "auto"
    seed: int = 0


def collect(question: Question, loading: Loading | None = None) -> list[Node]:
    """Let the target write, and read both distributions at every position."""
    place = Place(question.dtype, question.device, 1, None)
    llm = LLM(question.model, "plain", dtype=question.dtype, device=question.device, progress=loading)
    drafter, words = drafting(PartsFactory(llm.target, place), question.drafter)
    target, heat = llm.target.executor, question.temperature
    nodes = []
    for number, prompt in enumerate(question.prompts):
        ids = llm.tokenizer.encode(prompt)
        params = SamplingParams(heat, seed=question.seed + number, max_new_tokens=question.tokens, ignore_eos=True)
        text = llm.generate([ids], params)[0].token_ids
        p = row_distributions(target, ids, text, heat, target.vocab_size)
        q = row_distributions(drafter, ids, text, heat or TREE_TEMPERATURE, target.vocab_size, words)
        nodes += [Node(i + 1, p[i], q[i]) for i in range(len(text))]
    return nodes


def drafting(factory: PartsFactory, name: str | None) -> tuple[Executor, Array | None]:
    """The draft model, and the target's ids of its words (None = the same); `fastdraft` is the head of that name."""
    if name != "fastdraft":
        return draft_executor(factory, name), None
    made = factory.head("fastdraft", None).drafter(Chain(1), "fastdraft")
    assert isinstance(made, ModelDrafter) and made.vocabulary is not None
    return made.executor, made.vocabulary.ids.cpu().numpy()


@torch.inference_mode()
def row_distributions(
    executor: Executor, prompt: list[int], text: list[int], heat: float, vocab: int, words: Array | None = None
) -> Array:
    """[tokens, V] the next-token distribution after every prefix of a text, over `vocab` ids; `words`: its own ids."""
    executor.rollback([0], [0])
    executor.prefill([0], [prompt[:-1]])
    out = executor.forward(Rows.chains([0], [[prompt[-1], *text[:-1]]], executor.device))
    executor.rollback([0], [0])
    logits = out.logits[out.index[0]][:, : vocab if words is None else len(words)].to(torch.float32)
    block = ParamBlock.of([SamplingParams(heat)] * logits.shape[0], logits.shape[1], executor.device)
    distributions = distribution_of(logits, block).dense().double().cpu().numpy()
    if words is None:
        distributions = np.pad(distributions, ((0, 0), (0, vocab - distributions.shape[1])))
    else:
        own, distributions = distributions, np.zeros((len(distributions), vocab))
        distributions[:, words] = own
    return np.asarray(distributions / distributions.sum(axis=1, keepdims=True))


def analyse(
    nodes: list[Node], candidates: int, draws: int = 8, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Means over nodes."""
    lines = [line for line in FORMS if line[0] in RULES]
    accepted, best = np.zeros((len(nodes), len(lines), 2)), np.zeros((len(nodes), len(lines)))
    curve = np.zeros((len(nodes), MOST, 2))
    for n, node in enumerate(nodes):
        progress(n, len(nodes))
        for i, (rule, kind) in enumerate(lines):
            accepted[n, i] = acceptance(rule, kind, node.p, node.q, candidates, draws, seed=n)
            best[n, i] = max(optimum(node.p, node.q, kind, candidates), 1e-12)
        for k in range(MOST):
            curve[n, k] = [optimum(node.p, node.q, kind, k + 1) for kind in (IID, DRAWN)]
    progress(len(nodes), len(nodes))
    error = np.sqrt(accepted[:, :, 1].sum(axis=0)) / len(nodes)
    means = zip(lines, accepted[:, :, 0].mean(axis=0).tolist(), error.tolist(), best.mean(axis=0).tolist(), strict=True)
    rules = [
        {"rule": rule, "drafts": KINDS[kind], "acceptance": a, "error": e, "optimum": b, "share": a / b}
        | {"run": options_for(rule, kind, candidates)}
        for (rule, kind), a, e, b in means
    ]
    return {
        "nodes": len(nodes),
        "candidates": candidates,
        "overlap": float(np.mean([node.overlap for node in nodes])),
        "by_position": by_position(nodes, curve[:, candidates - 1, 1] if candidates <= MOST else None),
        "optimum": [
            {"candidates": k + 1, "independent": float(iid), "without_replacement": float(drawn)}
            for k, (iid, drawn) in enumerate(curve.mean(axis=0))
        ],
        "rules": rules,
    }


def by_position(nodes: list[Node], best: Array | None) -> list[dict[str, Any]]:
    """Overlap, and the optimum without replacement, at each position of the texts."""
    found = []
    for position in sorted({node.position for node in nodes}):
        here = [i for i, node in enumerate(nodes) if node.position == position]
        row = {"position": position, "overlap": float(np.mean([nodes[i].overlap for i in here]))}
        found.append(row if best is None else row | {"optimum": float(best[here].mean())})
    return found


def options_for(rule: str, kind: Kind, candidates: int) -> str:
    """The command-line options that run a rule on such candidates."""
    return f"--method draft-model --shape {SHAPES[kind].format(candidates)} --rule {rule}"


def answer(found: dict[str, Any]) -> str:
    """Which of the rules, how many candidates, and what the limit is, in plain words."""
    best = max(found["rules"], key=lambda row: row["acceptance"])
    most = max(rule["optimum"] for rule in found["rules"])
    curve = [row["without_replacement"] for row in found["optimum"]]
    enough = max((k + 1 for k in range(1, len(curve)) if curve[k] - curve[k - 1] >= WORTH), default=1)
    advice = f"beyond {enough} candidate{'s' * (enough > 1)} one more adds less than {WORTH:g}"
    if enough == len(curve):
        advice = f"up to {enough} candidates every one helps"
    rule_gap, drafter_gap = most - best["acceptance"], 1.0 - most
    limit = "the rule is" if rule_gap > drafter_gap else "the drafter is"
    return (
        f"Take {best['rule']} on {best['drafts']} ({best['run']}): with {found['candidates']} candidates it accepts"
        f" {best['acceptance']:.2f} where {most:.2f} is possible and a single draft gets {found['overlap']:.2f};"
        f" {limit} the limit (better rules could add {max(rule_gap, 0.0):.2f}, better drafts {drafter_gap:.2f});"
        f" {advice}."
    )
