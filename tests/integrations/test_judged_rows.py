"""The judge over an engine's rows, against the rule `judge` of our own, on chains of a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from foredraft.errors import UsageError
from foredraft.integrations.vllm_plugin.judged_rows import SURE, Drafted, JudgedRows
from foredraft.models.heads import Identity
from foredraft.models.judges import Judge, JudgeHead, JudgeSpec
from foredraft.models.judges.domain import fit_domain

VOCAB, WIDTH, EOS = 11, 6, frozenset({0})
COUNTS = [3, 1, 0, 4]


def judge_of(reads: tuple[str, ...], threshold: float | None = 0.5, domain: bool = False, **more: Any) -> Judge:
    width = WIDTH * ("target" in reads) + 4 * ("evidence" in reads)
    torch.manual_seed(3)
    head = JudgeHead(width, 0, fit_domain(torch.randn(64, width)) if domain else None).requires_grad_(False)
    if head.domain is not None:
        head.domain.limit = torch.tensor(0.9)
    spec = JudgeSpec("linear", reads, Identity(WIDTH, 3, VOCAB, "t"), threshold, width=width, **more)
    return Judge(head, spec, torch.zeros(0))


def drafted(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, Drafted]:
    """Logits and states of every row, one more a chain than it has drafts, and the drafts."""
    generator = torch.Generator().manual_seed(seed)
    rows, begin = [], 0
    for count in COUNTS:
        rows += [begin + i for i in range(count)]
        begin += count + 1
    tokens = torch.randint(0, VOCAB, (len(rows),), generator=generator)
    logits, states = torch.randn((begin, VOCAB), generator=generator), torch.randn((begin, WIDTH), generator=generator)
    return logits, states, Drafted(tokens, COUNTS, torch.tensor(rows))


@pytest.mark.parametrize("reads", [("target",), ("evidence",), ("target", "evidence")])
def test_rows_change_where_the_judge_lets_a_token_pass_and_nowhere_else(reads: tuple[str, ...]) -> None:
    logits, states, drafts = drafted()
    judge = judge_of(reads)
    every = JudgedRows(judge, EOS, "judge:threshold=-1,control=true")
    scores = judge.head(every.read(logits, states, drafts)[0])
    rows = JudgedRows(judge, EOS, f"judge:{float(scores.median())}")
    passes, made = rows.passes(logits, states, drafts), rows.judged(logits, states, drafts)
    assert 0 < int(passes.sum()) < len(passes) and rows.passed == int(passes.sum()) and rows.seen == len(passes)
    changed = {int(drafts.rows[i]): int(drafts.tokens[i]) for i in range(len(passes)) if passes[i]}
    for row in range(len(logits)):
        if row not in changed:
            assert torch.equal(made[row], logits[row])
            continue
        assert torch.softmax(made[row], 0)[changed[row]] == 1 and made[row].argmax() == changed[row]
        others = torch.arange(VOCAB) != changed[row]
        assert torch.allclose(made[row][others] + SURE, logits[row][others], atol=1e-3)  # if the token is forbidden


def expected(judge: Judge, logits: torch.Tensor, states: torch.Tensor, drafts: Drafted) -> list[bool]:
    """One token at a time, from the definition."""
    found = []
    for token, row in zip(drafts.tokens.tolist(), drafts.rows.tolist(), strict=True):
        p = torch.softmax(logits[row].double(), 0)
        own, rank = p[token], (p > p[token]).sum().double()
        evidence = torch.stack([own.log(), rank.log1p(), (p.max() / own).log(), -(p * p.log()).sum()])
        parts = {"target": states[row + 1], "evidence": evidence.float()}
        score = judge.head(torch.cat([parts[name] for name in judge.spec.reads]))
        found.append(float(score) > 0.5 and token not in EOS | set(judge.spec.forbidden_ids))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_the_definition(seed: int) -> None:
    logits, states, drafts = drafted(seed)
    judge = judge_of(("target", "evidence"), forbidden_ids=(4,))
    assert JudgedRows(judge, EOS).passes(logits, states, drafts).tolist() == expected(judge, logits, states, drafts)


def test_threshold_floor_and_control_are_spelled_as_elsewhere() -> None:
    logits, states, drafts = drafted()
    judge = judge_of(("target",), None)
    with pytest.raises(UsageError, match="give one, such as judge:0"):
        JudgedRows(judge, EOS)
    none = JudgedRows(judge, EOS, "judge:threshold=0,floor=1").passes(logits, states, drafts)
    every = JudgedRows(judge, EOS, "judge:threshold=-1,control=true").passes(logits, states, drafts)
    assert not none.any() and every.all()
    with pytest.raises(UsageError, match="states of a draft model"):
        JudgedRows(replace(judge, spec=replace(judge.spec, reads=("target", "draft"))), EOS, "judge:0.5")


def test_it_abstains_about_whole_drafts() -> None:
    """A draft passes or not by the mean distance of its own tokens."""
    logits, states, drafts = drafted()
    judge = judge_of(("target",), domain=True)
    rows = JudgedRows(judge, EOS, "judge:threshold=-1,control=true").passes(logits, states, drafts)
    distance = judge.head.domain.distance(states[drafts.rows + 1])  # type: ignore[union-attr]
    inside = [part.mean() <= 0.9 for part in distance.split(COUNTS) for _ in range(len(part))]
    assert rows.tolist() == inside and 0 < sum(inside) < len(inside)
