"""--drafter with a model of another tokenizer, through the front door."""

from __future__ import annotations

import pytest

from foredraft import LLM, SamplingParams, UsageError

from .kit import save_tiny, word_tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    base = tmp_path_factory.mktemp("models")
    target, drafter = save_tiny(base / "target"), save_tiny(base / "drafter", seed=1)
    word_tokenizer([f"w{i}" for i in range(40, 4, -1)]).save(str(drafter / "tokenizer.json"))
    return str(target), str(drafter)


@pytest.mark.parametrize("method", ["draft-model", "draft-model:vocab=tokens", "draft-model:vocab=tokens,shape=tree"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_any_small_model_drafts_for_any_target(method: str, temperature: float, folders: tuple[str, str]) -> None:
    target, drafter = folders
    params = SamplingParams(max_new_tokens=12, temperature=temperature, seed=3)
    llm = LLM(target, method, drafter=drafter, dtype="fp32")
    done = llm.generate(["w5 w6 w7 w8"], params)[0]
    assert done.stats.drafted > 0 and done.error is None
    if temperature == 0 or llm.method.rule.name == "sample-and-match":  # a seed gives the same text on and off
        assert done.token_ids == llm.generate(["w5 w6 w7 w8"], params, method="plain")[0].token_ids


def test_methods_that_do_not_translate_say_who_does(folders: tuple[str, str]) -> None:
    target, drafter = folders
    with pytest.raises(UsageError, match="draft-model translates"):
        LLM(target, "pearl", drafter=drafter, dtype="fp32")
    with pytest.raises(UsageError, match="nothing to translate"):
        LLM(target, "draft-model:vocab=text", drafter=target, dtype="fp32")
    with pytest.raises(UsageError, match="vocab"):
        LLM(target, "draft-model:vocab=bytes", drafter=drafter, dtype="fp32")
