"""Heads that others have published: they say here what their own engine makes of them, and odd ones are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from foredraft import LLM, SamplingParams
from foredraft.errors import ForedraftError, UsageError
from foredraft.models.heads.published.eagle_tensors import layer_ids
from foredraft.recipes.trained import Trained, best_kind, decoder_of, trained

from . import engine_layers
from .heads import head_of, refused, said, target_of
from .kit import VOCAB
from .test_export import CLOSE, TOKENS, exported, read, states

WIDTH = 32


def imported(kind: str, folder: Path) -> Trained:
    target = target_of()[1]
    assert best_kind((), target, str(folder)) == kind
    return trained(kind, target, str(folder))


def write(
    folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any], file: str = "model.safetensors"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if file.endswith(".safetensors"):
        save_file(tensors, folder / file)
    else:
        torch.save(tensors, folder / file)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


WAYS = [("eagle3", "vllm", "plain"), ("eagle3", "vllm", "speculators"), ("eagle", "vllm", "plain")]


@pytest.mark.parametrize(("kind", "engine", "schema"), [*WAYS, ("eagle", "sglang", "plain")])
def test_what_we_export_comes_back(kind: str, engine: str, schema: str, tmp_path: Path) -> None:
    folder = exported(kind, engine, tmp_path / "out", schema=schema)
    ours, back = head_of(kind), imported(kind, folder)
    read_states = states(len(ours.spec.taps))
    before, stream = said(ours.head, TOKENS, read_states)
    after, again = said(back.head, TOKENS, read_states)
    columns = back.vocabulary.index[ours.vocabulary.ids]
    assert bool((columns >= 0).all()) and back.spec.taps == ours.spec.taps
    assert (after[:, columns] - before).abs().max() < CLOSE
    later = said(back.head, TOKENS, None, again)[0][:, columns]
    assert (later - said(ours.head, TOKENS, None, stream)[0]).abs().max() < 2 * CLOSE


def test_norms_of_eagle31_words_and_sizes_of_its_own(tmp_path: Path) -> None:
    tensors, config = read(exported("eagle3", "vllm", tmp_path / "out"))
    generator = torch.Generator().manual_seed(8)
    heads, dim, inner = 2, 12, 40
    for name, rows in (("q", heads * dim), ("k", dim), ("v", dim)):
        tensors[f"midlayer.self_attn.{name}_proj.weight"] = torch.randn((rows, 2 * WIDTH), generator=generator) * 0.2
    tensors["midlayer.self_attn.o_proj.weight"] = torch.randn((WIDTH, heads * dim), generator=generator) * 0.2
    for name, shape in (("gate", (inner, WIDTH)), ("up", (inner, WIDTH)), ("down", (WIDTH, inner))):
        tensors[f"midlayer.mlp.{name}_proj.weight"] = torch.randn(shape, generator=generator) * 0.2
    for i in range(3):
        tensors[f"fc_norm.{i}.weight"] = torch.rand(WIDTH, generator=generator) + 0.5
    tensors["embed_tokens.weight"] = torch.randn((VOCAB, WIDTH), generator=generator)
    config |= {
        "num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": dim, "intermediate_size": inner,
        "rope_theta": 500.0, "rope_parameters": None, "fc_norm": True, "norm_output": True,
        "norm_before_residual": True, "rms_norm_eps": 1e-3,
    }  # fmt: skip
    back = imported("eagle3", write(tmp_path / "new", tensors, config))
    read_states = states(3)
    normed = [engine_layers.rms(s, tensors[f"fc_norm.{i}.weight"], 1e-3) for i, s in enumerate(read_states)]
    embeds = F.embedding(TOKENS, tensors["embed_tokens.weight"])
    logits, stream = engine_layers.eagle3(tensors, config, embeds, torch.cat(normed, dim=-1), "midlayer.")
    mine, mine_back = said(back.head, TOKENS, read_states)
    assert (logits[:, back.vocabulary.ids] - mine).abs().max() < CLOSE
    assert (engine_layers.rms(stream, tensors["norm.weight"], 1e-3) - mine_back).abs().max() < CLOSE


def medusa(own: bool, count: int = 3) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    generator = torch.Generator().manual_seed(4)
    tensors = {}
    for i in range(count):
        tensors[f"{i}.0.linear.weight"] = torch.randn((WIDTH, WIDTH), generator=generator) * 0.3
        tensors[f"{i}.0.linear.bias"] = torch.randn(WIDTH, generator=generator)
        if own:
            tensors[f"{i}.1.weight"] = torch.randn((VOCAB, WIDTH), generator=generator)
    config = {"model_type": "medusa", "medusa_num_heads": count, "medusa_num_layers": 1, "original_lm_head": not own}
    return tensors, config


@torch.no_grad()
def drafted(head: Any, state: torch.Tensor, tokens: torch.Tensor) -> list[torch.Tensor]:
    found, now = [], head.begin(head.feature([state]))
    for depth, token in enumerate(tokens):
        now, feature = head.step(now, head.embed(token[None], depth), depth)
        found.append(head.logits(feature, depth)[0])
    return found


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "model.safetensors"])
def test_medusa(own: bool, file: str, tmp_path: Path) -> None:
    tensors, config = medusa(own)
    back = imported("medusa", write(tmp_path, tensors, config, file))
    state, target = states(1)[0][:1], decoder_of(target_of()[1])
    for i, logits in enumerate(drafted(back.head, state, TOKENS[:3])):
        hidden = state + F.silu(F.linear(state, tensors[f"{i}.0.linear.weight"], tensors[f"{i}.0.linear.bias"]))
        rows = tensors[f"{i}.1.weight"] if own else target.head_weight
        assert (logits - F.linear(hidden, rows)[0]).abs().max() < CLOSE


@pytest.mark.parametrize("tied", [True, False])
def test_mlp_speculator(tied: bool, tmp_path: Path) -> None:
    generator, count, inner, tensors = torch.Generator().manual_seed(6), 3, 20, {}
    for i in range(count):
        for name, shape in (("emb", (VOCAB, inner)), ("head", (VOCAB, inner)), ("ln", (inner,))):
            if i == 0 or not tied:
                tensors[f"speculator.{name}.{i}.weight"] = torch.randn(shape, generator=generator)
        if i == 0 or not tied:
            tensors[f"speculator.ln.{i}.bias"] = torch.randn(inner, generator=generator)
        if i < 2 or not tied:  # the first product is of another width
            shape = (inner, WIDTH if i == 0 else inner)
            tensors[f"speculator.proj.{i}.weight"] = torch.randn(shape, generator=generator) * 0.3
    config = {
        "model_type": "mlp_speculator",
        "emb_dim": WIDTH,
        "inner_dim": inner,
        "n_predict": count,
        "scale_input": True,
    }
    back = imported("mlp-speculator", write(tmp_path, tensors, config))
    state = first = states(1)[0][:1]
    state = first * torch.rsqrt(first.pow(2).mean() + 1e-6) / 2**0.5
    weight = 0.5 ** (0.5 / count)
    share = ((1 - weight**2) * inner / 2) ** 0.5

    def at(name: str, i: int, kind: str = "weight") -> torch.Tensor:
        return next(tensors[k] for j in range(i, -1, -1) if (k := f"speculator.{name}.{j}.{kind}") in tensors)

    for i, logits in enumerate(drafted(back.head, first, TOKENS[:count])):
        mixed = weight * F.linear(state, at("proj", i)) + share * at("emb", i)[TOKENS[i]]
        state = F.gelu(mixed * torch.rsqrt(mixed.pow(2).mean() + 1e-6) * at("ln", i) + at("ln", i, "bias"))
        assert (logits - F.linear(state, at("head", i))[0]).abs().max() < CLOSE


@pytest.mark.parametrize("kind", ["eagle3", "eagle", "medusa"])
def test_published_heads_draft_and_the_text_is_the_targets(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    if kind == "medusa":
        write(folder, *medusa(True))
    else:
        exported(kind, "vllm", folder)
    llm = LLM(str(target_of()[0]), kind, drafter=str(folder), dtype="fp32", shape="chain", draft_length=3)
    for temperature in (0.0, 0.7):
        done = llm.generate("w3 w9 w5", SamplingParams(max_new_tokens=10, temperature=temperature, seed=1))[0]
        assert done.stats.drafted > 0
        if temperature == 0:
            plain = llm.generate("w3 w9 w5", SamplingParams(max_new_tokens=10), method="plain")[0]
            assert done.token_ids == plain.token_ids


# --- folders that `speculators` writes itself -----------------------------------------------------------------------

SPECULATORS = os.environ.get("FOREDRAFT_SPECULATORS", "")


@pytest.mark.slow
@pytest.mark.skipif(not SPECULATORS, reason="FOREDRAFT_SPECULATORS names no Python with speculators")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("more", [{}, {"norm_before_residual": True, "fc_norm": True, "norm_output": True}])
def test_folders_of_speculators_itself(family: str, more: dict[str, Any], tmp_path: Path) -> None:
    config = json.loads((target_of()[0] / "config.json").read_text())
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
    )
    sizes = {name: config[name] for name in names} | {"num_hidden_layers": 1, "head_dim": 8}
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[:20].sort().values
    taps = {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}
    job = {
        "folder": str(tmp_path / "out"),
        "family": family,
        "sizes": sizes,
        "more": more | taps,
        "words": ids.tolist(),
    }
    program = Path(__file__).with_name("speculators_program.py")
    subprocess.run([SPECULATORS, str(program)], input=json.dumps(job) + "\n", text=True, check=True)
    back = imported("eagle3", tmp_path / "out")
    assert back.vocabulary.ids.tolist() == ids.tolist() and back.spec.taps == (1, 2, 4) and back.spec.length == 3
    tensors, raw = read(tmp_path / "out")
    inner = raw["transformer_layer_config"]
    theta = inner.get("rope_theta") or inner["rope_parameters"]["rope_theta"]
    flat = raw | inner | {"rope_theta": theta, "norm_before_residual": bool(more)}
    read_states = states(3)
    if more:
        normed = [
            engine_layers.rms(s, tensors[f"fc_norm.{i}.weight"], flat["rms_norm_eps"])
            for i, s in enumerate(read_states)
        ]
    joined = torch.cat(normed if more else read_states, dim=-1)
    embeds = F.embedding(TOKENS, tensors["embed_tokens.weight"])
    logits, _ = engine_layers.eagle3(tensors, flat, embeds, joined, "layers.0.")
    assert (logits[:, ids] - said(back.head, TOKENS, read_states)[0]).abs().max() < CLOSE


# --- the layer that comes with a model --------------------------------------------------------------------------------


def mtp_folder(folder: Path, spelling: str, shards: bool = False) -> tuple[Path, dict[str, torch.Tensor]]:
    """The tiny target with a random layer of its own after the others, in one of three spellings."""
    source, generator = target_of()[0], torch.Generator().manual_seed(12)
    shutil.copytree(source, folder)
    given = load_file(source / "model.safetensors")
    place, inner, names = {
        "qwen": ("mtp.", "layers.0.", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")),
        "deepseek": ("model.layers.5.", "", ("enorm", "hnorm", "eh_proj", "shared_head.norm")),
        "mimo": ("model.mtp_layers.0.", "", ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")),
    }[spelling]
    layer = {n.removeprefix("model.layers.1."): v for n, v in given.items() if n.startswith("model.layers.1.")}
    own = {f"{inner}{name}": torch.randn(value.shape, generator=generator) * 0.3 for name, value in layer.items()}
    for name in names:
        shape = (WIDTH, 2 * WIDTH) if name == names[2] else (WIDTH,)
        own[f"{name}.weight"] = torch.randn(shape, generator=generator) * 0.3 + (len(shape) == 1)
    if spelling == "deepseek":
        own |= {"embed_tokens.weight": given["model.embed_tokens.weight"].clone()}
    found = {f"{place}{name}": value for name, value in own.items()}
    if shards:
        (folder / "model.safetensors").unlink()
        files = {"a.safetensors": given, "b.safetensors": found}
        for name, tensors in files.items():
            save_file(tensors, folder / name)
        held = {tensor: name for name, tensors in files.items() for tensor in tensors}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": held}))
    else:
        save_file(given | found, folder / "model.safetensors")
    # Under the names of an EAGLE layer with an entrance norm, for the reference.
    plain = {f"layers.0.{name.removeprefix(inner)}": own[name] for name in own if name.removeprefix(inner) in layer}
    words = ("embed_norm", "state_norm", "fc", "norm")
    return folder, plain | {word: own[f"{name}.weight"] for word, name in zip(words, names, strict=True)}


@pytest.mark.parametrize(
    ("spelling", "shards"), [("qwen", False), ("qwen", True), ("deepseek", False), ("mimo", False)]
)
def test_a_models_own_layer_drafts(spelling: str, shards: bool, tmp_path: Path) -> None:
    folder, tensors = mtp_folder(tmp_path / "model", spelling, shards)
    back, target = imported("eagle", folder), decoder_of(target_of()[1])
    config, state = json.loads((folder / "config.json").read_text()), states(1)[0]
    eps = config["rms_norm_eps"]
    embeds = engine_layers.rms(target.embed(TOKENS), tensors["embed_norm"], eps)
    normed = engine_layers.rms(state, tensors["state_norm"], eps)
    pair = (normed, embeds) if spelling == "mimo" else (embeds, normed)
    stream = F.linear(torch.cat(pair, dim=-1), tensors["fc"])
    stream = engine_layers.llama_layer(tensors, config, stream)
    out = engine_layers.rms(stream, tensors["norm"], eps)
    mine, mine_back = said(back.head, TOKENS, [state])
    assert (F.linear(out, target.head_weight) - mine).abs().max() < CLOSE
    assert (mine_back - (stream if spelling == "deepseek" else out)).abs().max() < CLOSE


@pytest.mark.parametrize("spelling", ["qwen", "deepseek"])
def test_a_models_own_layer_keeps_its_text(spelling: str, tmp_path: Path) -> None:
    folder, _ = mtp_folder(tmp_path / "model", spelling, shards=True)
    config = json.loads((folder / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    llm = LLM(str(folder), "eagle", drafter=str(folder), dtype="fp32", shape="chain", draft_length=2)
    done = llm.generate("w3 w9 w5", SamplingParams(max_new_tokens=10))[0]
    plain = llm.generate("w3 w9 w5", SamplingParams(max_new_tokens=10), method="plain")[0]
    assert done.stats.drafted > 0 and done.token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("family", "ours run those of"),
        ("gated", "not the target's own attention"),
        ("experts", "is of no MTP layer"),
        ("missing", "is missing; download"),
    ],
)
def test_layers_of_other_families_are_refused(case: str, words: str, tmp_path: Path) -> None:
    folder, _ = mtp_folder(tmp_path / "model", "qwen")
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    query = "mtp.layers.0.self_attn.q_proj.weight"
    if case == "family":
        config["model_type"] = "qwen3_next"
    elif case == "gated":
        tensors[query] = torch.cat((tensors[query], tensors[query]))
    elif case == "experts":
        tensors["mtp.layers.0.mlp.experts.0.up_proj.weight"] = torch.ones(4, 4)
    else:
        del tensors["mtp.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises((UsageError, ForedraftError), match=words):
        trained("eagle", target_of()[1], str(folder))


# --- refusals -------------------------------------------------------------------------------------------------------


def spoilt(case: str, tmp_path: Path) -> tuple[str, Path]:
    """An exported EAGLE-3 head with one thing wrong."""
    tensors, config = read(exported("eagle3", "vllm", tmp_path / "whole"))
    if case == "missing":
        del tensors["midlayer.mlp.up_proj.weight"]
    elif case == "strange":
        tensors["midlayer.self_attn.g_proj.weight"] = torch.ones(8)
    elif case == "width":
        config["hidden_size"] = 64
    elif case == "vocabulary":
        config["vocab_size"] = 128256
    elif case == "no d2t":
        del tensors["d2t"]
    elif case == "d2t":
        tensors["d2t"] = tensors["d2t"] + VOCAB
    elif case == "layers":
        config["eagle_aux_hidden_state_layer_ids"], config["eagle_config"] = [2, 16, 29], {}
    elif case == "both ids":
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    elif case == "shapes":
        config["num_attention_heads"] = 8
    else:
        (tmp_path / "whole" / "model.safetensors").write_bytes(b"nothing")
        return "eagle3", tmp_path / "whole"
    return "eagle3", write(tmp_path / "spoilt", tensors, config)


REFUSED = {
    "missing": "up_proj.weight' is missing; download",
    "strange": "g_proj.weight is of no eagle3 head",
    "width": "a model of width 64",
    "vocabulary": "vocabulary of 128256",
    "no d2t": "no d2t",
    "d2t": "belongs to another model",
    "layers": "do not fit a target of 5 layers",
    "both ids": "delete one of them",
    "shapes": "where its config tells",
    "broken": "download it again",
}


@pytest.mark.parametrize("case", REFUSED)
def test_odd_folders_are_refused_with_what_to_do(case: str, tmp_path: Path) -> None:
    kind, folder = spoilt(case, tmp_path)
    refused(kind, folder, REFUSED[case])


def test_layer_ids_of_every_spelling() -> None:
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]}}
    assert layer_ids({}, 30) == layer_ids(nested, 30) == (2, 15, 27)
    assert layer_ids({"eagle_aux_hidden_state_layer_ids": [2, 15, 27]} | nested, 30) == (2, 15, 27)


def test_an_ordinary_model_is_no_head(tmp_path: Path) -> None:
    assert best_kind((), target_of()[1], str(target_of()[0])) is None
    with pytest.raises(UsageError, match="no trained head"):
        trained("eagle3", target_of()[1], str(target_of()[0]))


# Tensors of public heads, as their folders list them: EAGLE-3 (SafeAILab, SpecForge), EAGLE (SafeAILab).
PUBLIC = {
    "eagle3": "d2t t2d fc.weight lm_head.weight norm.weight midlayer.hidden_norm.weight "
    "midlayer.input_layernorm.weight midlayer.post_attention_layernorm.weight "
    "midlayer.mlp.down_proj.weight midlayer.mlp.gate_proj.weight "
    "midlayer.mlp.up_proj.weight midlayer.self_attn.k_proj.weight midlayer.self_attn.o_proj.weight "
    "midlayer.self_attn.q_proj.weight midlayer.self_attn.v_proj.weight",
    "eagle": "embed_tokens.weight fc.weight layers.0.mlp.down_proj.weight layers.0.mlp.gate_proj.weight "
    "layers.0.mlp.up_proj.weight layers.0.post_attention_layernorm.weight layers.0.self_attn.k_proj.weight "
    "layers.0.self_attn.o_proj.weight layers.0.self_attn.q_proj.weight layers.0.self_attn.v_proj.weight",
}


@pytest.mark.parametrize("kind", PUBLIC)
def test_our_folders_have_the_tensors_of_public_ones(kind: str, tmp_path: Path) -> None:
    folder = exported(kind, "vllm", tmp_path / "out")
    assert set(load_file(folder / "model.safetensors")) == set(PUBLIC[kind].split())
