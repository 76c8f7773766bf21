"""What heads read and score, and the rule with every kind of head: off it is exact, open it accepts everything."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft.core.distributions.sampling import LogitDistributions, ParamBlock
from foredraft.core.distributions.tensors import TableDistributions
from foredraft.core.distributions.token_features import features_of_rows, token_features
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.trees.editing import keep, part
from foredraft.core.trees.layout import trees
from foredraft.core.verify import BatchCase, Rule, judge, tree_case
from foredraft.core.verify.second_chance import NO
from foredraft.core.verify.tree_walk import Child, Node
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.engine import Method
from foredraft.errors import UsageError
from foredraft.models.judges import JudgeHead, fold
from foredraft.recipes import LLM, Options
from foredraft.runtime import FINAL, Rows
from foredraft.types import Kind, Reason, SamplingParams

from .miniature import write_model

INF = float("inf")
EVERYTHING = ("target", "draft", "evidence")


def head_of(width: int, seed: int = 0) -> JudgeHead:
    torch.manual_seed(seed)
    return JudgeHead(width, 7).requires_grad_(False)


def test_evidence_by_hand() -> None:
    p = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    found = token_features(p, torch.tensor([[0, 2, 3]]))[0].tolist()
    entropy = 0.5 * log(2) + 0.25 * log(4) + 0.25 * log(8)
    assert found[0] == pytest.approx([log(0.5), 0.0, 0.0, entropy])
    assert found[1] == found[2] == pytest.approx([log(0.125), log(3), log(4), entropy])
    gone = token_features(torch.tensor([[1.0, 0.0]]), torch.tensor([[1]]))
    assert torch.isfinite(gone).all()  # truncation may take a token away


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evidence_of_many_rows_is_that_of_each(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Straight from logits, in blocks that end inside a sequence; some tokens have no chance at all."""
    monkeypatch.setattr("foredraft.core.distributions.token_features._AT_ONCE_ON_HOST", 7 * 1000)
    generator = torch.Generator().manual_seed(3)
    logits = (6 * torch.randn((20, 1000), generator=generator)).to(dtype)
    logits[4, 5], logits[9, 10:900] = -torch.inf, -torch.inf
    index, row = torch.randperm(20, generator=generator).reshape(2, 10), torch.randint(10, (2, 9), generator=generator)
    token = torch.randint(1000, (2, 9), generator=generator)
    block = ParamBlock.of([SamplingParams(temperature=1.0), SamplingParams(temperature=0.7)], 1000)
    distributions = LogitDistributions(logits, index, block)
    assert distributions.is_softmax
    found = features_of_rows(distributions, row, token)
    for k in range(9):
        p = distributions.at(row[:, k]).dense()
        torch.testing.assert_close(found.p[:, k], p.gather(1, token[:, k : k + 1])[:, 0], atol=1e-7, rtol=2e-5)
        expected = token_features(p, token[:, k : k + 1])[:, 0]
        torch.testing.assert_close(found.stacked()[:, k], expected, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("options", [{"top_k": 5}, {"top_p": 0.8}, {"logit_bias": {3: 2.0}}, {"temperature": 0.0}])
def test_evidence_of_bent_distributions_is_that_of_the_distributions(options: dict[str, Any]) -> None:
    logits = torch.randn((6, 50), generator=torch.Generator().manual_seed(4))
    block = ParamBlock.of([SamplingParams(**{"temperature": 1.0, **options})], 50)
    distributions, row, token = (
        LogitDistributions(logits, torch.arange(6)[None], block),
        torch.tensor([[0, 5, 2]]),
        logits[:3].argmin(1),
    )
    assert not distributions.is_softmax
    found = features_of_rows(distributions, row, token[None]).stacked()
    for k, r in enumerate(row[0]):
        assert torch.equal(found[:, k], token_features(distributions.at(r[None]).dense(), token[None, k : k + 1])[:, 0])


def test_the_table_of_opinions_is_what_the_readable_form_says() -> None:
    """Node by node, with every part, a floor and forbidden tokens; NO on padding, and without rows after it."""
    rule = judge(lambda rows: torch.sin(3 * rows.sum(dim=-1)), 0.0, {4}, 0.02, EVERYTHING)
    case = random_case(12, 7, Kind.CHOSEN, 2)
    assert rule.second_chance is not None and case.hidden is not None
    table = rule.second_chance.passing_scores(case)
    for b in range(12):
        tree = tree_case(case, b)
        for node in (-1, 0):
            children = [Child(i, tree.tree.token[i]) for i in tree.tree.children(node)]
            here = Node(tree.target(node + 1), children, Kind.CHOSEN, 1, node, partial(tree.draft, 0), tree.rng)
            expected = torch.tensor(rule.second_chance.score(tree, here))
            torch.testing.assert_close(table[b, [child.node for child in children]], expected, atol=1e-5, rtol=1e-5)
    assert bool((table == NO).any()) and bool((table > NO).any())
    short = replace(case.drafts, length=torch.full((12,), 2), lengths_host=(2,) * 12)
    few = rule.second_chance.passing_scores(replace(case, drafts=short, hidden=case.hidden[:, :3]))
    assert torch.equal(few[:, :2], table[:, :2]) and bool((few[:, 2:] == NO).all())


@pytest.mark.parametrize("units", [0, 5])
def test_a_folded_head_reads_raw_rows(units: int) -> None:
    torch.manual_seed(1)
    head, rows = JudgeHead(6, units), torch.randn(50, 6) * 40 + 300
    mean, scale = rows.mean(dim=0), rows.std(dim=0)
    torch.testing.assert_close(fold(head, mean, scale)(rows), head((rows - mean) / scale), atol=1e-4, rtol=1e-4)


def random_case(batch: int, seed: int, kind: Kind, branching: int) -> BatchCase:
    """Random distributions, trees and states of target and drafter."""
    generator = torch.Generator().manual_seed(seed)
    parents = [[-1, 0, 1, 2] if branching == 1 else [-1, -1, 0, 0] for _ in range(batch)]
    tokens = [torch.randperm(9, generator=generator)[:4].tolist() for _ in range(batch)]
    q = torch.softmax(2 * torch.randn(batch, 5, 9, generator=generator), dim=2)
    drafts = trees(list(zip(tokens, parents, strict=True)), kind, distributions=TableDistributions(q))
    drafts = replace(drafts, states=torch.randn(batch, 4, 3, generator=generator))
    p = torch.softmax(3 * torch.randn(batch, 5, 9, generator=generator), dim=2)
    key = torch.arange(batch) + seed
    point = torch.zeros_like(p).scatter_(2, p.argmax(dim=2, keepdim=True), 1.0)  # a greedy request
    hidden = torch.randn(batch, 5, 6, generator=generator)
    return BatchCase(
        drafts, TableDistributions(point), KeyedRng(key, key, key), hidden, temperature_one=TableDistributions(p)
    )


@pytest.mark.parametrize("reads", [("target",), ("target", "draft"), ("evidence",), EVERYTHING], ids="+".join)
@pytest.mark.parametrize("branching", [1, 2], ids=["chain", "tree"])
@pytest.mark.parametrize("floor", [0.0, 0.02])
def test_both_forms_agree(reads: tuple[str, ...], branching: int, floor: float) -> None:
    rule = judge(lambda rows: torch.sin(3 * rows.sum(dim=-1)), 0.0, {4}, floor, reads)
    seen: set[Reason] = set()
    for seed in range(12):
        case = random_case(5, seed, Kind.SAMPLED_WITHOUT_REPLACEMENT, branching)
        verdict = rule.verify_batch(case)
        for b in range(5):
            assert verdict.row(b) == rule.verify(tree_case(case, b)), (seed, b)
            seen |= set(verdict.row(b).reasons)
            said = [reason for reason, node in zip(verdict.row(b).reasons, verdict.row(b).path, strict=False)
                    if reason == Reason.JUDGE and int(case.drafts.token[b, node]) == 4]  # fmt: skip
            assert not said
    assert {Reason.JUDGE, Reason.CORRECTED} <= seen


def test_a_floor_looks_at_the_alternatives_of_a_greedy_request() -> None:
    """The distribution itself is a point mass at temperature 0: by it a floor would forbid everything."""
    case = random_case(1, 0, Kind.CHOSEN, 1)
    token, p = case.drafts.token[0, 0], case.temperature_one.at(torch.tensor([0])).dense()[0]  # type: ignore[union-attr]
    wrong = int(p.argmax()) == int(token)
    assert not wrong, "the case must need the judge"
    likely = float(p[token])
    open_to_all = JudgeHead(6).requires_grad_(False)
    for floor, accepted in ((likely * 0.9, True), (likely * 1.1, False)):
        assert (len(judge(open_to_all, -INF, (), floor).verify(tree_case(case)).path) > 0) == accepted


def test_parts_are_read_in_their_order() -> None:
    """A head that picks one number of the row shows where each part lies."""
    case = random_case(1, 2, Kind.CHOSEN, 1)
    assert case.hidden is not None and case.drafts.states is not None
    picked = {0: case.hidden[0, 1, 0], 6: case.drafts.states[0, 0, 0]}
    for place, value in picked.items():
        asked: list[Tensor] = []

        def spy(rows: Tensor, place: int = place, asked: list[Tensor] = asked) -> Tensor:
            asked.append(rows[..., place])
            return torch.full_like(rows[..., 0], -1.0)

        judge(spy, 0.5, reads=EVERYTHING).verify_batch(case)
        assert asked[0].reshape(-1)[0] == value
    with pytest.raises(UsageError, match="in this order"):
        judge(head_of(6), reads=("evidence", "target"))


def test_what_a_head_needs_must_be_there() -> None:
    case = random_case(1, 1, Kind.CHOSEN, 1)
    rule = judge(head_of(3), 0.5, reads=("draft",))
    bare = replace(case, drafts=replace(case.drafts, states=None))
    with pytest.raises(ValueError, match="drafter's states"):
        rule.verify_batch(bare)
    with pytest.raises(ValueError, match="drafter's states"):
        rule.verify(tree_case(bare))
    assert rule.needs_draft_states and not rule.needs_hidden and not rule.needs_temperature_one
    with pytest.raises(UsageError, match="drafts without any"):
        Method("lookup", rule, PromptLookup())


def test_states_follow_their_nodes() -> None:
    drafts = random_case(3, 4, Kind.CHOSEN, 2).drafts
    assert drafts.states is not None
    kept = keep(drafts, torch.tensor([[True, False, True, False]] * 3))
    assert kept.states is not None and torch.equal(kept.states[:, :2], drafts.states[:, [0, 2]])
    some = part(drafts, [2, 0])
    assert some.states is not None and torch.equal(some.states, drafts.states[[2, 0]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), "plain", dtype="fp32", device="cpu", batch_size=3)


PROMPTS = [[10, 20, 30, 40], [50, 51], [60, 61, 62, 63, 64, 65, 66]]


def with_head(llm: LLM, rule: Rule, length: int = 6) -> Method:
    """A shallow drafter under a rule; with its own states where the rule reads them."""
    method = llm.build_fresh("draft-model", Options(drafter="layers:1", draft_length=length))
    assert isinstance(method.drafter, ModelDrafter)
    if rule.needs_draft_states:
        method.drafter.give_states()
    return replace(method, rule=rule)


@pytest.mark.parametrize("reads", [("target",), ("target", "draft"), EVERYTHING], ids="+".join)
def test_a_judge_that_is_off_writes_what_plain_decoding_writes(llm: LLM, reads: tuple[str, ...]) -> None:
    params = SamplingParams(max_new_tokens=40)
    plain = llm.generate(PROMPTS, params)
    head = head_of(32 * len(reads) - (28 if "evidence" in reads else 0))
    done = llm.generate(PROMPTS, params, method=with_head(llm, judge(head, INF, reads=reads)))
    assert [c.token_ids for c in done] == [c.token_ids for c in plain]
    assert all(Reason.JUDGE not in c.reasons for c in done)
    assert sum(c.stats.drafted for c in done) > 0


@pytest.mark.parametrize("reads", [("target",), EVERYTHING], ids="+".join)
def test_a_judge_that_is_open_accepts_every_drafted_token(llm: LLM, reads: tuple[str, ...]) -> None:
    """Control tokens allowed, no floor: the drafter's own text, plus the target's token after each draft."""
    head = head_of(32 if reads == ("target",) else 68)
    params = SamplingParams(max_new_tokens=36, ignore_eos=True)
    done = llm.generate(PROMPTS, params, method=with_head(llm, judge(head, -INF, reads=reads), 5))
    for completion in done:
        assert completion.stats.accepted == completion.stats.drafted > 0
        assert Reason.CORRECTED not in completion.reasons
        assert completion.reasons[5] == Reason.BONUS and Reason.JUDGE in completion.reasons


def test_control_tokens_never_pass_by_the_judge_unless_allowed(llm: LLM) -> None:
    """Every letter of the alphabet is declared a control token but those that the target itself writes."""
    params = SamplingParams(max_new_tokens=30, ignore_eos=True)
    everything = frozenset(range(llm.target.executor.vocab_size))
    plain = llm.generate(PROMPTS, params)
    held = llm.generate(PROMPTS, params, method=with_head(llm, judge(head_of(32), -INF, everything)))
    assert [c.token_ids for c in held] == [c.token_ids for c in plain]
    free = llm.generate(PROMPTS, params, method=with_head(llm, judge(head_of(32), -INF)))
    assert [c.token_ids for c in free] != [c.token_ids for c in plain]


def test_a_drafter_hands_over_the_states_of_its_tokens(llm: LLM) -> None:
    """Each node's state is what the draft model has with that token as input; handing them over changes no draft."""
    method = with_head(llm, judge(head_of(64), INF, reads=("target", "draft")))
    seen = []
    drafter = method.drafter
    assert isinstance(drafter, ModelDrafter) and drafter.gives_states
    propose = drafter.propose

    def spy(sequences, rng):  # type: ignore[no-untyped-def]
        drafts = propose(sequences, rng)
        seen.append(([list(s.tokens) for s in sequences], drafts))
        return drafts

    drafter.propose = spy  # type: ignore[method-assign]
    llm.generate(PROMPTS, SamplingParams(max_new_tokens=12), method=method)
    executor = drafter.executor
    for tokens, drafts in seen[:3]:
        assert drafts.states is not None
        for b, text in enumerate(tokens):
            length = drafts.lengths()[b]
            line = drafts.token[b, :length].tolist()
            executor.rollback([0], [0])
            out = executor.forward(Rows.chains([0], [text + line], executor.device))
            executor.rollback([0], [0])
            own = out.hidden[FINAL][len(text) :]
            torch.testing.assert_close(drafts.states[b, :length], own, rtol=1e-3, atol=1e-3)
    tree = llm.build_fresh("draft-model", Options(drafter="layers:1", shape="tree")).drafter
    assert isinstance(tree, ModelDrafter) and not tree.gives_states
    with pytest.raises(UsageError, match="shape chain only"):
        tree.give_states()
