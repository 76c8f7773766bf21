"""A head that learns on CUDA: trained on the device, taken over between rounds, and the text stays the model's."""

from __future__ import annotations

import pytest
import torch

from foredraft import LLM, SamplingParams
from foredraft.draft.online.online_drafter import OnlineDrafter

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
PROMPTS = [f"Write {n} facts about {what}." for n in (3, 5, 7) for what in ("bread", "rain", "chess", "salt")]


def test_it_learns_and_writes_the_same() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    llm = LLM("smollm2", "online:every=2,lr=0.001,shape=chain:drawn=false", dtype="fp32", device="cuda", batch_size=4)
    params = SamplingParams(max_new_tokens=32, ignore_eos=True)
    plain = llm.generate(PROMPTS, params, method="plain")
    drafter = llm.method.drafter
    assert isinstance(drafter, OnlineDrafter)
    for _ in range(3):
        found = llm.generate(PROMPTS, params)
        assert [answer.token_ids for answer in found] == [answer.token_ids for answer in plain]
    (learner,) = drafter.learners.values()
    assert learner.progress.updates > 4 and learner.progress.swaps > 0
    assert all(value.device.type == "cuda" for value in learner.weights.values())
    assert learner.progress.serving > learner.progress.first  # the same texts three times: there is something to gain
