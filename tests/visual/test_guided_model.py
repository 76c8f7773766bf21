"""Classifier-free guidance through the engine: guided logits, trees, speculation that changes nothing, LANTERN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft import LLM, SamplingParams
from foredraft.errors import UsageError
from foredraft.models.visual import CLASSES
from foredraft.recipes import Options
from foredraft.runtime import FINAL, Rows, TorchExecutor
from foredraft.runtime.guided import Guidance, GuidedExecutor

CODES, NONE = 32, 42
SAMPLED = SamplingParams(temperature=1.0, seed=3, max_new_tokens=100)


def plain_states(llm: LLM, tokens: list[int]) -> torch.Tensor:
    """[n, d] features of a text without guidance."""
    executor = TorchExecutor(llm.target.executor.decoder, 1)  # type: ignore[arg-type]
    return executor.forward(Rows.chains([0], [tokens], executor.device)).hidden[FINAL]


def test_guided_logits_are_the_two_streams_apart(llm: LLM) -> None:
    decoder = llm.target.executor.decoder
    assert decoder is not None
    executor = GuidedExecutor(TorchExecutor(decoder, 4), Guidance(2.5, CODES, NONE))
    texts = [[35, 1, 2, 3], [40, 9, 8]]
    executor.prefill([0, 1], [text[:1] for text in texts])
    out = executor.forward(Rows.chains([0, 1], [text[1:] for text in texts], executor.device))
    for b, text in enumerate(texts):
        known, unknown = plain_states(llm, text), plain_states(llm, [NONE, *text[1:]])
        want = decoder.logits(unknown + 2.5 * (known - unknown))[1:, :CODES]
        got = out.logits[out.index[b, : len(text) - 1]]
        assert torch.allclose(got[:, :CODES], want, atol=1e-4)
        assert bool((got[:, CODES:] == -torch.inf).all())


def test_a_tree_equals_its_paths_and_commits_in_both_streams(llm: LLM) -> None:
    decoder = llm.target.executor.decoder
    assert decoder is not None
    executor = GuidedExecutor(TorchExecutor(decoder, 2), Guidance(2.0, CODES, NONE))
    executor.prefill([0], [[33]])
    tree = Rows((0,), (4,), torch.tensor([5, 6, 7, 8]), torch.tensor([0, 1, 1, 2]), torch.tensor([-1, 0, 0, 2]))
    found = executor.forward(tree).logits
    executor.commit([0], [3], torch.tensor([[0, 2, 3]]))
    after = executor.forward(Rows.chains([0], [[9]], executor.device)).logits
    executor.rollback([0], [1])
    again = executor.forward(Rows.chains([0], [[5, 7, 8, 9]], executor.device)).logits
    assert torch.allclose(found[[0, 2, 3]][:, :CODES], again[:3, :CODES], atol=1e-4)
    assert torch.allclose(after[0, :CODES], again[3, :CODES], atol=1e-4)


@pytest.mark.parametrize(
    "method", ["eagle2:shape=eagle2:nodes=6", "eagle:shape=lantern", "auto", "draft-model:drafter=layers:1"]
)
def test_exact_methods_change_nothing(llm: LLM, method: str) -> None:
    """Sample-and-match keeps the text of a seed; greedy text is the same for all."""
    spelled = method if method != "eagle:shape=lantern" else "eagle:shape=lantern,rule=sample-and-match"
    for params in (SAMPLED, SamplingParams(max_new_tokens=100)):
        if method.startswith("draft-model") and params is SAMPLED:
            continue  # a drawn chain is judged by the p/q rule, which draws otherwise
        plain, ours = (llm.generate(["bag", "shirt", "any"], params, method=name) for name in ("plain", spelled))
        assert [r.token_ids for r in plain] == [r.token_ids for r in ours]
        assert all(len(r.token_ids) == 49 and max(r.token_ids) < CODES for r in ours)


def test_lantern_relaxes_and_without_a_budget_does_not(llm: LLM) -> None:
    exact = llm.generate(["bag"] * 3, SAMPLED, method="eagle:shape=lantern:drawn=true")
    off = llm.generate(["bag"] * 3, SAMPLED, method="lantern:lam=1")
    wide = llm.generate(["bag"] * 3, SAMPLED, method="lantern:lam=50,k=31")
    assert [r.token_ids for r in exact] == [r.token_ids for r in off]
    assert sum(r.stats.accepted for r in wide) >= sum(r.stats.accepted for r in exact)
    greedy = [
        llm.generate("coat", SamplingParams(max_new_tokens=99), method=m)[0].token_ids for m in ("plain", "lantern")
    ]
    assert greedy[0] == greedy[1]
    assert not llm.build("lantern").exact


def test_a_codebook_of_ones_own(llm: LLM, tmp_path: Path) -> None:
    """A file may name the neighbours; one that fits no token table, or none at all, is refused."""
    np.save(tmp_path / "book.npy", np.random.default_rng(0).normal(size=(CODES, 4)))
    np.save(tmp_path / "large.npy", np.zeros((500, 4)))
    assert llm.build(f"lantern:codebook={tmp_path / 'book.npy'}").rule.name == "lantern++"
    assert llm.build("eagle2", Options(rule=f"lantern:delta=0.2,codebook={tmp_path / 'book.npy'}")).rule.lossy
    with pytest.raises(UsageError, match="500 codes"):
        llm.build(f"lantern:codebook={tmp_path / 'large.npy'}")
    with pytest.raises(UsageError, match="no codebook file"):
        llm.build(f"lantern:codebook={tmp_path / 'none.npy'}")


def test_guidance_sharpens_and_has_its_scale(weights: Path) -> None:
    one = LLM("lantern-demo", "plain", dtype="fp32", device="cpu", guidance=1.0)
    executor = one.target.executor
    executor.prefill([0], [[CODES + CLASSES.index("bag")]])
    got = executor.forward(Rows.chains([0], [[4]], executor.device)).logits[0, :CODES]
    assert executor.decoder is not None
    want = executor.decoder.logits(plain_states(one, [CODES + CLASSES.index("bag"), 4]))[-1, :CODES]
    assert torch.allclose(got, want, atol=1e-4)
