"""Where two greedy outputs part, and by how much the target preferred its own token there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from foredraft.bench.margins import Reader, find_difference, next_logits
from foredraft.recipes import LLM
from foredraft.types import SamplingParams

LOGITS = torch.tensor([0.0, 3.0, 2.5, -1.0])


def test_the_first_difference_and_its_margin() -> None:
    seen: list[list[int]] = []

    def look(text: list[int]) -> Tensor:
        seen.append(text)
        return LOGITS

    assert find_difference(look, [9], [1, 1], [1, 1]) is None and not seen
    found = find_difference(look, [9], [3, 1, 3], [3, 2, 3])
    assert found is not None and seen == [[9, 3]]
    assert (found.position, found.plain_id, found.method_id) == (1, 1, 2)
    assert found.margin == pytest.approx(0.5) and found.gap == pytest.approx(0.5)


def test_an_output_that_ends_early_differs_where_it_ends() -> None:
    found = find_difference(lambda text: LOGITS, [9], [1, 2, 3], [1])
    assert found is not None
    assert (found.position, found.plain_id, found.method_id, found.gap) == (1, 2, None, None)


def test_the_target_reads_the_text_anew_and_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(str(tiny), "plain", dtype="fp32")
    prompt = llm.tokenizer.encode("The harbour")
    output = llm.generate([prompt], SamplingParams(max_new_tokens=6))[0].token_ids
    reader = Reader(llm.target.executor)
    for i, token in enumerate(output):
        assert int(reader(prompt + output[:i]).argmax()) == token
    assert llm.target.executor.length(0) == 0
    monkeypatch.setattr("foredraft.bench.margins.next_logits", None)
    assert int(reader(prompt + output[: len(output) - 1]).argmax()) == output[-1]
    monkeypatch.undo()
    assert next_logits(llm.target.executor, prompt).shape == (260,)
