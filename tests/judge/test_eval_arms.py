"""Which method a judge's trials draft with when none is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.judge.eval.eval_arms import EvalArms, usual_method
from foredraft.recipes import LLM

from .miniature import loaded, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def test_the_usual_method(model: Path, tmp_path: Path) -> None:
    target = loaded(model)
    assert usual_method(target, None) == "draft-model"
    tuned = replace(target, name="judge-demo")
    assert usual_method(tuned, None) == "fastdraft"  # its own head, there or not
    assert usual_method(tuned, "layers:1") == usual_method(tuned, str(model)) == "draft-model"


def test_a_method_by_name_goes_before_it(model: Path) -> None:
    llm = LLM(str(model), "plain", dtype="fp32", device="cpu")
    llm.target = replace(llm.target, name="judge-demo")
    assert EvalArms.of(llm, None, None, None, 25).method == "fastdraft"
    assert EvalArms.of(llm, None, None, "prompt-lookup", 25).method == "prompt-lookup"
