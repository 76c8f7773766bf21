"""P-EAGLE heads: one pass says every level as vLLM does, the text stays the target's, odd folders are refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file

from foredraft import LLM, SamplingParams
from foredraft.core.distributions.sampling import ParamBlock
from foredraft.core.shapes.base import Chain, Frontier
from foredraft.draft.neural.blocks.p_eagle import ParallelDrafter
from foredraft.errors import UsageError
from foredraft.models.heads import ParallelEagle3
from foredraft.recipes.trained import Trained, best_kind, decoder_of, trained
from foredraft.runtime import Output, TorchExecutor
from foredraft.types import Budget, Sequence

from .heads import refused, target_of
from .kit import VOCAB
from .parallel_heads import levels, parallel_folder
from .test_export import CLOSE, exported, read

SPECULATORS = os.environ.get("FOREDRAFT_SPECULATORS", "")
TEXTS = ([3, 17, 9, 9, 41, 5], [8, 2, 30])  # of two sequences of a batch
DEPTH = 4


def drafted_levels(back: Trained, states: list[torch.Tensor]) -> list[torch.Tensor]:
    """[DEPTH, Vd] logits for each text, as the drafter finds them in one round of both."""
    assert isinstance(back.drafter(Chain(DEPTH), "p-eagle"), ParallelDrafter)
    drafter = ParallelDrafter(cast(Any, back.head), Chain(DEPTH), back.vocabulary, 2, 64, "p-eagle")
    tokens = [[1, *text] for text in TEXTS]  # slot t is (state t, token t + 1)
    sequences = [
        Sequence(i, text, 1, SamplingParams(), 0, budget=Budget(DEPTH, DEPTH)) for i, text in enumerate(tokens)
    ]
    drafter.begin(sequences)
    taps = back.spec.taps
    drafter.observe_prefill(sequences, [0, 0], [dict(zip(taps, s.chunk(len(taps), 1), strict=True)) for s in states])
    block = ParamBlock.of([SamplingParams()] * 2, drafter.executor.vocab_size, drafter.executor.device)
    with torch.no_grad():
        stepper = drafter.new_round([drafter._slots[s.id] for s in sequences], sequences, block)
        stepper.features = drafter._joined(sequences)
        steps = [stepper.root()]
        for depth in range(1, DEPTH):
            at = torch.full((2, 1), depth)
            steps.append(stepper.expand(Frontier(at, torch.zeros_like(at), at, at)))
    return [torch.stack([step.logits[step.rows[b, 0]] for step in steps]) for b in range(2)]


def imported(folder: Path) -> Trained:
    assert best_kind((), target_of()[1], str(folder)) == "p-eagle"
    return trained("p-eagle", target_of()[1], str(folder))


def states_of(width: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    return [torch.randn((len(text), width), generator=generator) for text in TEXTS]


@pytest.mark.parametrize(
    ("layers", "more"), [(1, {}), (3, {"norm_before_residual": True}), (2, {"fc_norm": True, "ptd_token_id": 7})]
)
def test_levels_are_those_of_vllms_layers(layers: int, more: dict[str, Any], tmp_path: Path) -> None:
    source = exported("eagle3", "vllm", tmp_path / "eagle3")
    folder, tensors, config = parallel_folder(source, tmp_path / "out", layers, **more)
    back, states = imported(folder), states_of(tensors["fc.weight"].shape[1])
    assert back.spec.layers == layers and back.longest == 8
    embedding = decoder_of(target_of()[1]).embedding
    config |= {"rope_theta": config.get("rope_theta") or config["rope_parameters"]["rope_theta"]}
    for text, own, found in zip(TEXTS, states, drafted_levels(back, states), strict=True):
        wanted = levels(tensors, config, embedding, torch.tensor(text), own, DEPTH)
        assert (found - wanted).abs().max() < CLOSE
        assert (wanted[1:] - wanted[:1]).abs().max() > 0.1  # levels differ


@pytest.mark.parametrize("shape", ["chain", "eagle2:nodes=8,width=3"])
def test_the_text_is_the_targets_and_a_round_is_one_pass(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, _ = parallel_folder(exported("eagle3", "vllm", tmp_path / "eagle3"), tmp_path / "out", 2)
    llm = LLM(str(target_of()[0]), "p-eagle", drafter=str(folder), dtype="fp32", shape=shape, draft_length=4)
    passes, whole = [], TorchExecutor.forward_embeds

    def forward(executor: TorchExecutor, *given: Any, **more: Any) -> Output:
        passes.append(type(executor.decoder))
        return whole(executor, *given, **more)

    monkeypatch.setattr(TorchExecutor, "forward_embeds", forward)
    done = llm.generate("w3 w9 w5", SamplingParams(max_new_tokens=12))[0]
    assert done.stats.drafted > 0 and 0 < passes.count(ParallelEagle3) <= done.stats.steps
    plain = llm.generate("w3 w9 w5", SamplingParams(max_new_tokens=12), method="plain")[0]
    assert done.token_ids == plain.token_ids
    assert llm.generate("w3 w9 w5", SamplingParams(max_new_tokens=6, temperature=0.7, seed=1))[0].stats.drafted > 0


REFUSED = {
    "no token": "names no token for places ahead; add one of",
    "token": "is none of the target's",
    "state": "mask_hidden has 32 numbers",
    "no state": "mask_hidden' is missing; download",
    "window": "a window of the text only",
    "eagle3": "use --method p-eagle",
    "strange": "layers.1.self_attn.g_proj.weight is of no eagle3 head",
}


@pytest.mark.parametrize("case", REFUSED)
def test_odd_folders_are_refused_with_what_to_do(case: str, tmp_path: Path) -> None:
    folder, tensors, config = parallel_folder(exported("eagle3", "vllm", tmp_path / "eagle3"), tmp_path / "out", 2)
    if case == "no token":
        del config["pard_token"]
    elif case == "token":
        config["pard_token"] = VOCAB
    elif case == "state":
        tensors["mask_hidden"] = torch.ones(32)
    elif case == "no state":
        del tensors["mask_hidden"]
    elif case == "window":
        config["layer_types"] = ["sliding_attention", "full_attention"]
    elif case == "strange":
        tensors["layers.1.self_attn.g_proj.weight"] = torch.ones(4)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    refused("eagle3" if case == "eagle3" else "p-eagle", folder, REFUSED[case])


def test_models_that_draft_in_parallel_are_no_heads(tmp_path: Path) -> None:
    config = json.loads((target_of()[0] / "config.json").read_text()) | {"pard_token": 5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="PARD"):
        best_kind((), target_of()[1], str(tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(not SPECULATORS, reason="FOREDRAFT_SPECULATORS names no Python with speculators")
@pytest.mark.parametrize(("family", "layers"), [("llama", 1), ("qwen3", 2)])
def test_folders_of_speculators_itself(family: str, layers: int, tmp_path: Path) -> None:
    config = json.loads((target_of()[0] / "config.json").read_text())
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    sizes = {name: config[name] for name in names} | {"num_hidden_layers": layers, "head_dim": 8, "rms_norm_eps": 1e-5}
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[:20].sort().values
    more = {"eagle_aux_hidden_state_layer_ids": [1, 2, 4], "mask_token_id": 11}
    job = {"folder": str(tmp_path / "out"), "family": family, "sizes": sizes, "more": more, "words": ids.tolist()}
    program = Path(__file__).with_name("speculators_program.py")
    said = json.dumps(job | {"algorithm": "peagle"}) + "\n"
    subprocess.run([SPECULATORS, str(program)], input=said, text=True, check=True)
    back = imported(tmp_path / "out")
    assert back.vocabulary.ids.tolist() == ids.tolist() and back.spec.layers == layers and back.longest == 3
    tensors, raw = read(tmp_path / "out")
    inner = raw["transformer_layer_config"]
    theta = inner.get("rope_theta") or inner["rope_parameters"]["rope_theta"]
    flat = raw | inner | {"rope_theta": theta, "norm_before_residual": False}
    states = states_of(tensors["fc.weight"].shape[1])
    for text, own, found in zip(TEXTS, states, drafted_levels(back, states), strict=True):
        wanted = levels(tensors, flat, tensors["embed_tokens.weight"], torch.tensor(text), own, 3)
        assert (found[:3] - wanted).abs().max() < CLOSE
