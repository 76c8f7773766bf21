"""What a judge knows: the sketch is Mahalanobis's distance, its limit holds on held-out rows, and it travels with the
head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foredraft import LLM, SamplingParams
from foredraft.judge.fit.pipeline import OUTSIDE, TrainOrder, train
from foredraft.judge.labels.record import read_records, write_records
from foredraft.models.judges import change, load_judge, read_spec
from foredraft.models.judges.domain import WINDOW, Domain, fit_domain, limit_domain
from foredraft.models.judges.known_prompts import fit_prompts
from foredraft.recipes import Options
from foredraft.recipes.judge_rules import target_identity
from foredraft.types import Reason

from .miniature import loaded, texts, write_model


def rows(count: int, seed: int, width: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=torch.Generator().manual_seed(99))
    return torch.randn(count, width, generator=generator) @ mixing + 3.0


def test_at_full_rank_it_is_mahalanobis() -> None:
    seen = rows(4000, 1)
    domain = fit_domain(seen, rank=39)
    centred = seen - seen.mean(dim=0)
    inverse = torch.linalg.inv((centred.T @ centred / len(seen)).double())
    here = rows(200, 3) - seen.mean(dim=0)
    exact = ((here.double() @ inverse) * here.double()).sum(dim=1).div(40).sqrt()
    assert torch.allclose(domain.distance(rows(200, 3)).double(), exact, rtol=0.02)


def outside(domain: Domain, some: torch.Tensor, length: int = WINDOW) -> float:
    """Share of drafts of these rows that are outside."""
    drafts = some[: len(some) // length * length].reshape(-1, length, some.shape[1])
    return float(domain.outside(drafts, torch.ones(drafts.shape[:2], dtype=torch.bool)).float().mean())


@pytest.mark.parametrize("rank", [4, 16, 39])
def test_drafts_like_training_are_inside_and_strange_ones_outside(rank: int) -> None:
    domain, held_out = fit_domain(rows(4000, 1), rank), rows(5000, 2)
    limit_domain(domain, domain.distance(held_out), torch.arange(5000) // 100, 0.02)
    assert outside(domain, held_out) <= 0.021 and outside(domain, rows(5000, 4)) < 0.1
    strange = 12 * torch.randn(500, 40, generator=torch.Generator().manual_seed(5))
    assert outside(domain, strange) == 1.0


def test_rows_that_are_not_used_count_nowhere() -> None:
    domain = limit_domain(fit_domain(rows(4000, 1)), torch.ones(100), torch.zeros(100), 0.02)
    drafts, used = rows(50, 2).reshape(1, 50, 40).repeat(2, 1, 1), torch.ones((2, 50), dtype=torch.bool)
    drafts[:, 25:], used[1, 25:] = 1e4, False
    assert domain.outside(drafts, used).tolist() == [True, False]
    assert not domain.outside(drafts, torch.zeros_like(used)).any()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def judge(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge")
    write_records(folder / "labels.jsonl", texts(loaded(model), 80))
    report = train(TrainOrder((folder / "labels.jsonl",)), loaded(model), None, folder / "judge")
    assert 0.5 < report.figures["distance"] < 1.5
    change(folder / "judge", threshold=0.0)
    return folder / "judge"


def test_it_travels_with_the_head(judge: Path, model: Path) -> None:
    target = loaded(model)
    found = load_judge(judge, target_identity(target))
    spec = read_spec(judge)
    assert spec.domain is not None and spec.domain["share"] == OUTSIDE
    assert found.head.domain is not None and found.head.outside is not None
    assert float(found.head.domain.limit) == pytest.approx(spec.domain["limit"])
    far, used = torch.full((1, 3, found.head.width), 1e3), torch.ones((1, 3), dtype=torch.bool)
    assert found.head.outside(far, used).all()


def test_what_it_keeps_back_is_counted(judge: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of nothing the text is the target's own, token by token, and the reasons say why."""
    llm = LLM(str(model), "plain", dtype="fp32", device="cpu", max_length=256)
    params = SamplingParams(max_new_tokens=24)
    plain = llm.generate(["abc abc"], params)[0]

    def reasons(limit: float) -> tuple[list[int], list[Reason]]:
        method = llm.build_fresh("judge", Options(drafter="layers:1", judge=str(judge)))
        head = method.rule.second_chance.shared_key[0]  # type: ignore[union-attr,index]
        head.domain.limit.fill_(limit)
        request = llm.request("abc abc", params, method)
        llm.engine.add(request)
        while request.finish_reason is None:
            llm.engine.step()
        return request.sequence.output, request.reasons

    ids, why = reasons(0.0)
    assert ids == plain.token_ids and Reason.ABSTAINED in why and Reason.JUDGE not in why
    ids, why = reasons(1e9)
    assert Reason.JUDGE in why and Reason.ABSTAINED not in why


def test_prompts_of_another_domain_are_left_to_the_exact_rule(judge: Path, model: Path) -> None:
    """A prompt whose token pairs no question had gets the target's own text; one of the questions is judged."""
    llm = LLM(str(model), "plain", dtype="fp32", device="cpu", max_length=256)
    method = llm.build_fresh("judge", Options(drafter="layers:1", judge=str(judge)))
    assert method.rule.knows is not None and method.beyond is not None
    asked = method.rule.knows.__self__  # type: ignore[attr-defined]
    asked.limit.fill_(0.2)  # these questions are random ids: held-out ones are all strange
    known = next(r.prompt for r in read_records(judge.parent / "labels.jsonl") if asked.strange(r.prompt) == 0)
    strange = next(ids for ids in ([n, n + 1, n, n + 1] for n in range(5, 60)) if asked.strange(ids) > 0.5)
    plain = llm.generate([strange], SamplingParams(max_new_tokens=24))[0]
    requests = [llm.request(list(ids), SamplingParams(max_new_tokens=24), method) for ids in (strange, known)]
    for request in requests:
        llm.engine.add(request)
    while any(request.finish_reason is None for request in requests):
        llm.engine.step()
    assert [request.stats.strange for request in requests] == [1, 0]
    assert requests[0].sequence.output == plain.token_ids and Reason.JUDGE not in requests[0].reasons
    assert Reason.JUDGE in requests[1].reasons


def test_what_is_known_of_prompts() -> None:
    asked = [[1, 2, 3, n, 9] for n in range(10, 40)]
    found = fit_prompts(asked, [[1, 2, 3, 41, 9], [1, 2, 3, 12, 9]])
    assert found.strange([1, 2, 3, 12, 9]) == 0 and found.strange([7]) == 0
    assert found.strange([5, 6, 7, 8, 5]) == 1 and not found.knows([5, 6, 7, 8, 5])
    assert float(found.limit) == pytest.approx(2 * 0.5, abs=0.01)
    assert float(fit_prompts(asked, asked).limit) == pytest.approx(0.2)
