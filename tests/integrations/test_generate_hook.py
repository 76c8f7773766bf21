"""foredraft inside generate(): the same ids, one copy of the weights, every option honoured or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft import LLM, SamplingParams, UsageError, speculate
from foredraft.core.distributions.sampling import ParamBlock, distribution_of
from foredraft.integrations.generate_hook.processors import read_processors
from foredraft.integrations.generate_hook.repo_folder import write_custom_generate
from foredraft.integrations.generate_hook.speculate import sampling_params
from foredraft.runtime.hf.executor import HFExecutor

from .kit import VOCAB, fast_tokenizer, save_tiny, tiny_model

ROW = [5, 9, 5, 9, 5, 9]
PROMPTS = torch.tensor([ROW])


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return fast_tokenizer()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_weights_are_shared_and_stay_what_they_are(family: str, tokenizer: Any) -> None:
    model = tiny_model(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    llms = [LLM.from_model(model, tokenizer, "plain") for _ in range(2)]
    held = {p.untyped_storage().data_ptr() for p in model.parameters()}
    for llm in llms:  # the second one finds the parts side by side already
        decoder = llm.target.executor.decoder
        assert decoder is not None
        assert {p.untyped_storage().data_ptr() for p in decoder.parameters()} == held
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.add_(1.0)
        decoder.layers[0].qkv.weight[:32].add_(1.0)
    assert torch.equal(decoder.layers[0].qkv.weight[32:48], model.model.layers[0].self_attn.k_proj.weight)
    assert torch.equal(model.model.layers[0].self_attn.q_proj.weight, decoder.layers[0].qkv.weight[:32])


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2"])
@pytest.mark.parametrize("method", ["plain", "suffix", "draft-model"])
def test_same_ids_as_generate(family: str, method: str, tokenizer: Any) -> None:
    model = tiny_model(family)
    if family == "gemma2" and method == "draft-model":
        pytest.skip("its own layers cannot be taken apart")
    loop = speculate(method, tokenizer=tokenizer)
    ours = model.generate(PROMPTS, max_new_tokens=40, do_sample=False, custom_generate=loop)
    assert torch.equal(ours, model.generate(PROMPTS, max_new_tokens=40, do_sample=False))
    assert loop.stats.accepted > 0 or method != "suffix"
    assert isinstance(loop.llm(model).target.executor, HFExecutor) == (family == "gemma2")


def test_a_padded_batch_is_answered_row_by_row(model: Any, tokenizer: Any) -> None:
    ids = torch.tensor([[0, 0, 7, 8, 7], [1, 2, 3, 4, 5]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    for stops in (None, int(model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)[0, 8])):
        given = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "eos_token_id": stops}
        ours = model.generate(ids, custom_generate=speculate("suffix", tokenizer=tokenizer, batch_size=2), **given)
        assert torch.equal(ours, model.generate(ids, **given))
    with pytest.raises(UsageError, match="left"):
        model.generate(
            ids, attention_mask=mask.flip(1), max_new_tokens=2, custom_generate=speculate("plain", tokenizer=tokenizer)
        )


HONOURED: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 20, "eos_token_id": [5, 9, 11]},
    "bad_words": {"bad_words_ids": [[5], [9, 5]]},
    "suppress": {"suppress_tokens": [5, 9]},
    "forced_eos": {"forced_eos_token_id": 3, "eos_token_id": 3},
    "prefix": {"prefix_allowed_tokens_fn": lambda batch, ids: [1, 2, 3 + len(ids) % 5]},
}


@pytest.mark.parametrize("name", HONOURED)
def test_processors_are_honoured_on_every_drafted_node(name: str, model: Any, tokenizer: Any) -> None:
    given = {"max_new_tokens": 24, "do_sample": False} | HONOURED[name]
    ours = model.generate(PROMPTS, custom_generate=speculate("suffix", tokenizer=tokenizer), **given)
    assert torch.equal(ours, model.generate(PROMPTS, **given))


@pytest.mark.parametrize("stops", [None, [6]])
def test_a_function_of_prefixes_is_asked_about_allowed_texts_only(
    stops: list[int] | None, model: Any, tokenizer: Any
) -> None:
    """Like a trie, which knows nothing of words outside of it and nothing after their ends; drafts may be either."""
    prompt = torch.tensor([[2, 4, 6, 5, 2, 4, 6, 5, 2, 4, 6, 5]])
    asked: list[list[int]] = []

    def follows(batch: int, ids: torch.Tensor) -> list[int]:
        written = ids[prompt.shape[1] :].tolist()
        asked.append(written)
        known = all(token in (2, 4, 6) for token in written) and not (stops and 6 in written)
        return [2, 4, 6] if known else []

    given = {"max_new_tokens": 16, "do_sample": False, "prefix_allowed_tokens_fn": follows, "eos_token_id": stops}
    expected = model.generate(prompt, **given)
    ours = model.generate(prompt, custom_generate=speculate("suffix", tokenizer=tokenizer), **given)
    assert torch.equal(ours, expected) and len(asked) > 2 * (expected.shape[1] - prompt.shape[1])


def test_criteria_and_streamers_see_every_token(model: Any, tokenizer: Any) -> None:
    from transformers import StoppingCriteria

    class Until(StoppingCriteria):  # a length that depends on the text
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            seen = int((input_ids[0] == input_ids[0, -1]).sum())
            return torch.tensor([seen >= 6])

    class Heard:
        def __init__(self) -> None:
            self.ids: list[int] = []
            self.ended = 0

        def put(self, value: Any) -> None:
            self.ids += value.flatten().tolist()

        def end(self) -> None:
            self.ended += 1

    heard, theirs = Heard(), Heard()
    given = {"max_new_tokens": 60, "do_sample": False, "stopping_criteria": [Until()]}
    loop = speculate("suffix", tokenizer=tokenizer, streamer=heard)
    ours = model.generate(PROMPTS, custom_generate=loop, **given)
    expected = model.generate(PROMPTS, streamer=theirs, **given)
    assert torch.equal(ours, expected) and ours.shape[1] < 66
    assert heard.ids == theirs.ids == ours[0].tolist() and heard.ended == 1


@pytest.mark.parametrize("options", [{"temperature": 0.7, "top_k": 9, "top_p": 0.8}, {"min_p": 0.2, "top_k": 20}])
def test_sampling_has_the_distribution_of_generate(options: dict[str, Any], model: Any) -> None:
    """The warpers that generate() prepares, applied by transformers and read by us."""
    from transformers import GenerationConfig

    config = GenerationConfig(do_sample=True, repetition_penalty=1.2, **options)
    prepared = model._get_logits_processor(config, input_ids_seq_length=6, device="cpu")
    logits = torch.randn((1, VOCAB), generator=torch.Generator().manual_seed(3)) * 3
    theirs = torch.softmax(prepared(PROMPTS, logits.clone()), dim=1)
    given, masks = read_processors(prepared)
    params = sampling_params(True, given, None, 5)
    counts = torch.bincount(PROMPTS[0], minlength=VOCAB)[None]
    block = ParamBlock.of([params], VOCAB)
    rows = torch.where(counts > 0, torch.where(logits > 0, logits / 1.2, logits * 1.2), logits)
    assert params.repetition_penalty == 1.2 and not masks
    assert torch.allclose(distribution_of(rows, block).dense(), theirs, atol=1e-6)


def test_a_seed_of_torch_repeats_a_text(model: Any, tokenizer: Any) -> None:
    loop, texts = speculate("suffix", tokenizer=tokenizer), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(model.generate(PROMPTS, custom_generate=loop, max_new_tokens=20, do_sample=True).tolist())
    assert texts[0] == texts[1] != texts[2]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 3}, "beam_search"),
    "scores": ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
    "order": ({"do_sample": True, "top_p": 0.5, "min_p": 0.1}, "min_p"),
    "typical": ({"do_sample": True, "typical_p": 0.5}, "TypicalLogitsWarper"),
    "decay": ({"exponential_decay_length_penalty": (2, 1.1)}, "ExponentialDecayLengthPenalty"),
    "own": ({"logits_processor": [lambda ids, scores: scores]}, "function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(name: str, model: Any, tokenizer: Any) -> None:
    given, word = REFUSED[name]
    with pytest.raises(UsageError, match=word):
        loop = speculate("suffix", tokenizer=tokenizer)
        model.generate(PROMPTS, max_new_tokens=4, custom_generate=loop, **given)


def test_a_tokenizer_is_asked_for(model: Any) -> None:
    with pytest.raises(UsageError, match="tokenizer"):
        model.generate(PROMPTS, max_new_tokens=4, custom_generate=speculate("plain"))


def test_records_and_return_sequences(model: Any, tokenizer: Any) -> None:
    loop = speculate("suffix", tokenizer=tokenizer)
    given = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
    assert model.generate(PROMPTS, custom_generate=loop, **given).sequences.shape == (1, 12)
    several = model.generate(PROMPTS, custom_generate=loop, max_new_tokens=6, do_sample=True, num_return_sequences=3)
    assert several.shape == (3, 12)


def test_the_folder_form_takes_every_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = save_tiny(tmp_path / "model")
    plain = AutoModelForCausalLM.from_pretrained(folder)
    write_custom_generate(folder, "suffix")
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = plain.generate(PROMPTS, max_new_tokens=30, do_sample=False)
    assert torch.equal(model.generate(PROMPTS, max_new_tokens=30, do_sample=False), expected)
    word = tokenizer.decode([int(expected[0, 10])])
    given = {"max_new_tokens": 30, "do_sample": False, "stop_strings": [word], "tokenizer": tokenizer}
    assert torch.equal(model.generate(PROMPTS, **given), plain.generate(PROMPTS, **given))


def test_a_moved_model_is_taken_up_again(tokenizer: Any) -> None:
    model, loop = tiny_model(), speculate("suffix", tokenizer=tokenizer)
    first = loop.llm(model)
    model.to(torch.bfloat16)
    assert loop.llm(model) is not first and loop.llm(model).target.dtype == "bf16"


def test_from_model_generates_text(model: Any, tokenizer: Any) -> None:
    llm = LLM.from_model(model, tokenizer, "prompt-lookup")
    done = llm.generate("w5 w9 w5 w9", SamplingParams(max_new_tokens=5))[0]
    assert len(done.token_ids) == 5 and done.text.startswith("w")


@pytest.mark.slow
def test_twenty_prompts_of_the_default_model_in_fp32() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from foredraft.models import resolve

    folder = resolve("smollm2")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    loop, same, near = speculate("auto", tokenizer=tokenizer), 0, 0
    for prompt in TWENTY:
        ids = torch.tensor([tokenizer.encode(prompt)])
        given = {"max_new_tokens": 40, "do_sample": False, "attention_mask": torch.ones_like(ids)}
        ours = model.generate(ids, custom_generate=loop, **given)[0].tolist()
        theirs = model.generate(ids, **given)[0].tolist()
        same += ours == theirs
        if ours != theirs:  # allowed only where the two best logits nearly tie
            at = next(i for i, (a, b) in enumerate(zip([*ours, -1], [*theirs, -1], strict=False)) if a != b)
            with torch.no_grad():
                best = model(torch.tensor([theirs[:at]])).logits[0, -1].topk(2).values
            near += float(best[0] - best[1]) < 1e-4
    print(
        f"{same} of 20 equal, {near} part at a tie; last call: {loop.stats.accepted} of {loop.stats.drafted} accepted"
    )
    assert same + near == 20 and same >= 19


SUBJECTS = (
    "the tides",
    "bread",
    "a lighthouse",
    "prime numbers",
    "rust",
    "the moon",
    "chess",
    "honey",
    "rivers",
    "ink",
)
TWENTY = [f"{opening} {subject}" for subject in SUBJECTS for opening in ("A short story about", "List three facts on")]
