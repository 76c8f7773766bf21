"""Exported heads say what ours say: by a reference of each engine's layer on the exported tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from foredraft.cli.app import run
from foredraft.errors import UsageError
from foredraft.integrations.export.exporter import ExportOrder, export_head
from foredraft.models import load_decoder
from foredraft.models.load.gguf import convert_gguf
from foredraft.models.load.weight_names import halves_from_pairs
from foredraft.recipes.trained import decoder_of

from . import engine_layers
from .heads import WORDS, head_folder, head_of, said, target_of
from .kit import VOCAB

CLOSE = 1e-4
TOKENS = torch.tensor([3, 17, 9, 9, 41, 5])


def exported(kind: str, engine: str, out: Path, family: str = "llama", **more: Any) -> Path:
    order = ExportOrder(str(head_folder(kind, family)), engine, out, str(target_of(family)[0]), dtype="fp32", **more)
    export_head(order)
    return out


def read(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def states(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn((len(TOKENS), 32), generator=generator) * (1 + i) for i in range(count)]


EAGLE3_KEYS = {
    "d2t", "t2d", "fc.weight", "norm.weight", "lm_head.weight", "midlayer.hidden_norm.weight",
    "midlayer.input_layernorm.weight", "midlayer.post_attention_layernorm.weight",
    *(f"midlayer.self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
}  # fmt: skip
EAGLE_KEYS = {
    "fc.weight", "embed_tokens.weight", "layers.0.post_attention_layernorm.weight",
    *(f"layers.0.self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
}  # fmt: skip
GGUF_KEYS = {
    "fc.weight", "output_norm.weight", "output.weight", "d2t",
    *(f"blk.0.{name}.weight" for name in (
        "attn_norm", "attn_norm_2", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up",
        "ffn_down",
    )),
}  # fmt: skip
BIASES = {f"midlayer.self_attn.{name}_proj.bias" for name in "qkvo"}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize(("engine", "schema"), [("vllm", "plain"), ("vllm", "speculators"), ("sglang", "plain")])
def test_eagle3_says_the_same(engine: str, schema: str, family: str, tmp_path: Path) -> None:
    tensors, config = read(exported("eagle3", engine, tmp_path / "out", family, schema=schema))
    ours = head_of("eagle3", family)
    prefix, flat = "midlayer.", config
    if schema == "speculators":
        prefix, flat = "layers.0.", config["transformer_layer_config"] | {"norm_before_residual": False}
    named = {name.replace("layers.0.", "midlayer.") for name in tensors}
    assert named == EAGLE3_KEYS | (BIASES if family == "qwen2" else set())
    embeds, read_states = decoder_of(target_of(family)[1]).embed(TOKENS), states(3)
    logits, back = engine_layers.eagle3(tensors, flat, embeds, torch.cat(read_states, dim=-1), prefix)
    mine, mine_back = said(ours.head, TOKENS, read_states)
    assert (logits[:, ours.vocabulary.ids] - mine).abs().max() < CLOSE and (back - mine_back).abs().max() < CLOSE
    assert int((logits[0] > -torch.inf).sum()) == WORDS
    later, _ = engine_layers.eagle3(tensors, flat, embeds, back, prefix)  # a step that reads its own output
    assert (later[:, ours.vocabulary.ids] - said(ours.head, TOKENS, None, mine_back)[0]).abs().max() < CLOSE


def test_layer_ids_are_written_as_each_engine_counts(tmp_path: Path) -> None:
    _, config = read(exported("eagle3", "vllm", tmp_path / "out"))
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]  # vLLM, llama.cpp: the stream that enters layer k
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 3]  # SGLang adds 1
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["tie_word_embeddings"] is False
    assert config["norm_before_residual"] is False and config["draft_vocab_size"] == WORDS
    tensors, _ = read(tmp_path / "out")
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], (torch.arange(WORDS) + tensors["d2t"]).sort().values)
    page = (tmp_path / "out" / "USE.md").read_text()
    assert '"method": "eagle3"' in page and '"num_speculative_tokens": 4' in page


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_eagle_says_the_same(engine: str, tmp_path: Path) -> None:
    tensors, config = read(exported("eagle", engine, tmp_path / "out"))
    assert set(tensors) == EAGLE_KEYS | ({"fc.bias"} if engine == "sglang" else set())
    ours, target = head_of("eagle"), decoder_of(target_of()[1])
    embeds = torch.nn.functional.embedding(TOKENS, tensors["embed_tokens.weight"])
    final = states(1)[0]
    logits, back = engine_layers.eagle(tensors, config, embeds, final, target.head_weight)
    mine, mine_back = said(ours.head, TOKENS, [final])
    ids = ours.vocabulary.ids
    assert (logits[:, ids] - mine).abs().max() < CLOSE
    later, _ = engine_layers.eagle(tensors, config, embeds, back, target.head_weight)
    assert (later[:, ids] - said(ours.head, TOKENS, None, mine_back)[0]).abs().max() < 2 * CLOSE
    names = {"vllm": "LlamaForCausalLM", "sglang": "LlamaForCausalLMEagle"}
    assert config["architectures"] == [names[engine]]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_fastdraft_is_an_ordinary_model(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = exported("fastdraft", "transformers", tmp_path / "out", family)
    model = AutoModelForCausalLM.from_pretrained(out)
    ours = head_of("fastdraft", family)
    with torch.no_grad():
        theirs = model(TOKENS[None]).logits[0][:, ours.vocabulary.ids]
    assert (theirs - language(ours.head)).abs().max() < CLOSE
    if family == "llama":  # transformers puts a tokenizer of its own in the place of any qwen2 one
        assert AutoTokenizer.from_pretrained(out).encode("w3 w17") == [3, 17]
    assert "assistant_model" in (out / "USE.md").read_text()


@torch.no_grad()
def language(head: Any) -> torch.Tensor:
    from tests.models.conftest import Causal

    x, _ = head.run(head.embed(TOKENS), torch.arange(len(TOKENS)), Causal())
    return head.logits(head.finish(x))


# --- llama.cpp ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that holds no more of a target than its tokenizer."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "target.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["w", "1", "w1", *(f"w{i}" for i in range(3, VOCAB))])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["w 1"])
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(path: Path) -> tuple[dict[str, torch.Tensor], Any]:
    import gguf

    reader = gguf.GGUFReader(path)
    found = {}
    for tensor in reader.tensors:
        whole = tensor.tensor_type == gguf.GGMLQuantizationType.I64
        array = tensor.data if whole else gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        found[tensor.name] = torch.from_numpy(array.copy())
    return found, reader


@pytest.mark.parametrize(("storage", "close"), [("f32", 1e-7), ("f16", 2e-3), ("q8_0", 2e-2)])
def test_eagle3_as_gguf_holds_the_same_tensors(storage: str, close: float, target_gguf: Path, tmp_path: Path) -> None:
    plain, config = read(exported("eagle3", "vllm", tmp_path / "folder"))
    more = {"storage": storage, "target_gguf": target_gguf}
    out = exported("eagle3", "llama.cpp", tmp_path / "gguf", **more)
    found, reader = gguf_tensors(out / f"eagle3-{storage}.gguf")
    assert set(found) == GGUF_KEYS
    assert torch.equal(found["d2t"].long(), plain["d2t"] + torch.arange(WORDS))  # absolute here
    for letter, heads in (("q", 4), ("k", 2)):
        rows = halves_from_pairs(found[f"blk.0.attn_{letter}.weight"], heads)
        assert (rows - plain[f"midlayer.self_attn.{letter}_proj.weight"]).abs().max() < close
    assert (found["blk.0.attn_norm_2.weight"] - plain["midlayer.hidden_norm.weight"]).abs().max() < close
    assert (found["output.weight"] - plain["lm_head.weight"]).abs().max() < 4 * close
    values = {name: field.contents() for name, field in reader.fields.items()}
    assert values["general.architecture"] == "eagle3" and values["eagle3.target_layers"] == [1, 3, 4]
    assert values["tokenizer.ggml.tokens"][3] == "w3" and values["tokenizer.ggml.eos_token_id"] == 0
    assert values["eagle3.attention.head_count_kv"] == config["num_key_value_heads"]


def test_fastdraft_as_gguf_runs_here_again(target_gguf: Path, tmp_path: Path) -> None:
    more = {"storage": "f32", "target_gguf": target_gguf}
    out = exported("fastdraft", "llama.cpp", tmp_path / "gguf", **more)
    folder = convert_gguf(out / "fastdraft-f32.gguf", tmp_path / "back", lambda *_: None)
    ours = head_of("fastdraft")
    again = language(load_decoder(folder))[:, ours.vocabulary.ids]
    assert (again - language(ours.head)).abs().max() < CLOSE


# --- refusals -------------------------------------------------------------------------------------------------------

REFUSED = {
    "llama.cpp has no EAGLE-1": (("eagle", "llama.cpp"), {}, "no such architecture"),
    "a kind that nobody reads": (("medusa", "vllm"), {}, "last state"),
    "an engine that nobody knows": (("eagle3", "vlm"), {}, "did you mean 'vllm'|vllm"),
    "the schema elsewhere": (("eagle3", "sglang"), {"schema": "speculators"}, "leave --schema out"),
    "a path that vLLM misreads": (("fastdraft", "vllm"), {"name": "my-eagle3-draft"}, "choose another --out"),
    "no file with a tokenizer": (("eagle3", "llama.cpp"), {}, "--target-gguf"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_engine_cannot_read_is_refused(name: str, tmp_path: Path) -> None:
    (kind, engine), more, words = REFUSED[name]
    out = tmp_path / more.pop("name", "out")
    with pytest.raises(UsageError, match=words):
        exported(kind, engine, out, **more)
    assert not out.exists()


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "eagel3", "--to", "vllm", "--out", str(tmp_path / "a")]) == 2
    assert "unknown kind of head 'eagel3'; did you mean 'eagle3'?" in capsys.readouterr().err
    argv = ["export", str(head_folder("eagle3")), "--to", "vllm", "--model", str(target_of()[0]), "--out"]
    assert run([*argv, str(tmp_path / "a")]) == 0
    assert "model.safetensors" in capsys.readouterr().out
    assert run([*argv, str(tmp_path / "a")]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_folder_for_generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    out = exported("eagle3", "transformers", tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(target_of()[0], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(target_of()[0])
    given = {"max_new_tokens": 12, "do_sample": False}
    ids = TOKENS[None]
    ours = model.generate(ids, custom_generate=str(out), trust_remote_code=True, tokenizer=tokenizer, **given)
    assert torch.equal(ours, model.generate(ids, **given))
