"""GGUF files of the llama, qwen2 and qwen3 architectures, written out as plain Hugging Face folders.

Tensors are dequantised block by block with the `gguf` package, so that memory stays low whatever the model's size.
It refuses to know how the folder is run later, and where the file came from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ForedraftError
from ..config import ModelConfig, read_json
from ..layers.rope import frequencies
from .folders import SINGLE, Progress, appearing, mark, silent, working
from .intact import intact
from .tensorfile import TensorWriter
from .vocabulary import Role, Vocabulary, write_tokenizer
from .weight_names import gguf_to_hf, halves_from_pairs, slots

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
BLOCK_ELEMENTS = 1 << 23  # dequantised at once
FP32_BELOW = 1_000_000_000  # parameters; larger models are written in bf16
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")
ROPE_FACTORS = "rope_freqs.weight"  # how llama.cpp stores Llama 3's scaling


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An opened file: metadata as plain values, tensors by their GGUF names."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Any]  # gguf.ReaderTensor

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture"))

    def value(self, key: str, default: Any = None) -> Any:
        """A metadata value of this architecture; without a default it must be there."""
        found = self.metadata.get(f"{self.architecture}.{key}", default)
        if found is None:
            raise ForedraftError(f"{self.path} lacks {self.architecture}.{key}; the file is incomplete")
        return found


def convert_gguf(path: Path | str, out_folder: Path | str, progress: Progress = silent, weights: bool = True) -> Path:
    """Write the model of a GGUF file as a Hugging Face folder, which appears whole or not at all.

    Without `weights`: for whoever reads them out of the file; `widen_gguf` adds them later.
    """
    path, out_folder = Path(path), Path(out_folder)
    file = open_gguf(path)
    with intact(path, "GGUF file"):
        raw = hf_config(file)
        check_sizes(file, raw)
        config = ModelConfig.from_hf(raw)
    dtype = torch.float32 if config.num_parameters < FP32_BELOW else torch.bfloat16
    with intact(path, "GGUF file"), appearing(out_folder) as folder:
        if weights:
            _write_weights(file, config, dtype, folder / SINGLE, progress)
        else:
            sources_of(file, config)
        write_tokenizer(vocabulary(file), folder)
        raw["torch_dtype"] = str(dtype).removeprefix("torch.")
        generation = {k: raw[k] for k in ("bos_token_id", "eos_token_id") if k in raw}
        (folder / "config.json").write_text(json.dumps(raw, indent=2), encoding="utf-8")
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2), encoding="utf-8")
        mark(folder, path)
    return out_folder


def widen_gguf(path: Path, folder: Path, progress: Progress = silent) -> None:
    """Add the weights to a folder that was written without them."""
    raw = read_json(folder / "config.json")
    dtype = torch.float32 if raw["torch_dtype"] == "float32" else torch.bfloat16
    with intact(path, "GGUF file"), working(folder / ".widened") as place:
        _write_weights(open_gguf(path), ModelConfig.from_hf(raw), dtype, place / SINGLE, progress)
        (place / SINGLE).replace(folder / SINGLE)


def open_gguf(path: Path) -> GgufFile:
    """Read a file's metadata and tensor table; nothing is dequantised yet."""
    try:
        import gguf
    except ImportError:
        raise ForedraftError("reading GGUF files needs another package: pip install foredraft[gguf]") from None
    if not path.is_file():
        raise ForedraftError(f"{path} does not exist")

    class Reader(gguf.GGUFReader):
        """Refuses to read past the end of the file; the package would go on with nothing, for any length."""

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise ValueError("it ends within a value")
            return super()._get(offset, dtype, count, override_order)

    with intact(path, "GGUF file"):
        reader = Reader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    found = GgufFile(path, metadata, {tensor.name: tensor for tensor in reader.tensors})
    if found.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ForedraftError(f"{path}: GGUF architecture {found.architecture!r} is not supported; supported: {known}")
    if found.metadata.get(f"{found.architecture}.expert_count"):
        raise ForedraftError(f"{path}: mixture-of-experts GGUF files are not supported")
    return found


def check_sizes(file: GgufFile, raw: Mapping[str, Any]) -> None:
    """Sizes that the metadata gives must be those of tensors, which the file holds: no size is believed unseen."""
    sizes = {"token_embd": (raw["hidden_size"], raw["vocab_size"])}
    sizes["blk.0.attn_q"] = (raw["hidden_size"], raw["num_attention_heads"] * raw["head_dim"])
    sizes["blk.0.attn_k"] = (raw["hidden_size"], raw["num_key_value_heads"] * raw["head_dim"])
    sizes["blk.0.ffn_up"] = (raw["hidden_size"], raw["intermediate_size"])
    for name, size in sizes.items():
        found = tuple(int(n) for n in _tensor(file, f"{name}.weight").shape)
        if found != size:
            raise ForedraftError(f"{file.path}: {name} is {found}, not {size} as the metadata says; it is damaged")
    if not 0 < raw["num_hidden_layers"] <= len(file.tensors):
        raise ForedraftError(f"{file.path}: {raw['num_hidden_layers']} layers of {len(file.tensors)} tensors")


def hf_config(file: GgufFile) -> dict[str, Any]:
    """The config.json that says what the file's metadata says."""
    heads, hidden = int(file.value("attention.head_count")), int(file.value("embedding_length"))
    raw: dict[str, Any] = {
        "architectures": [ARCHITECTURES[file.architecture]],
        "model_type": file.architecture,
        "vocab_size": int(_tensor(file, "token_embd.weight").shape[1]),
        "hidden_size": hidden,
        "num_hidden_layers": int(file.value("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(file.value("attention.head_count_kv", heads)),
        "head_dim": int(file.value("attention.key_length", hidden // heads)),
        "intermediate_size": int(file.value("feed_forward_length")),
        "hidden_act": "silu",
        "rms_norm_eps": _short(file.value("attention.layer_norm_rms_epsilon")),
        "rope_theta": _short(file.value("rope.freq_base", 10000.0)),
        "max_position_embeddings": int(file.value("context_length")),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    tokens = {k: file.metadata.get(f"tokenizer.ggml.{k}_token_id") for k in ("bos", "eos", "eot", "eom")}
    stops = sorted({int(v) for k, v in tokens.items() if k != "bos" and v is not None} | _turn_ends(file))
    if tokens["bos"] is not None:
        raw["bos_token_id"] = int(tokens["bos"])
    if stops:
        raw["eos_token_id"] = stops[0] if len(stops) == 1 else stops
    return raw | _rope_scaling(file, raw)


def _turn_ends(file: GgufFile) -> set[int]:
    """Control tokens that end a turn in the chat template: tuned models' files may name the base model's end alone."""
    template = str(file.metadata.get("tokenizer.chat_template", ""))
    pieces, roles = (file.metadata.get(f"tokenizer.ggml.{key}") or () for key in ("tokens", "token_type"))
    found = (i for i, (_, role) in enumerate(zip(pieces, roles, strict=False)) if role == Role.CONTROL)
    return {i for i in found if pieces[i] in TURN_ENDS and pieces[i] in template}


def vocabulary(file: GgufFile) -> Vocabulary:
    """The tokenizer that the file carries."""
    meta = {k.removeprefix("tokenizer.ggml."): v for k, v in file.metadata.items()}
    if "tokens" not in meta:
        raise ForedraftError(f"{file.path} carries no tokenizer; use a GGUF file with one")
    model, pre = str(meta.get("model")), str(meta.get("pre", "default"))
    return Vocabulary(
        model=model,
        pieces=meta["tokens"],
        roles=meta.get("token_type") or [1] * len(meta["tokens"]),
        merges=meta.get("merges", ()),
        scores=meta.get("scores", ()),
        words=pre,
        space_prefix=bool(meta.get("add_space_prefix", True)),
        bos=meta.get("bos_token_id"),
        eos=meta.get("eos_token_id"),
        unknown=meta.get("unknown_token_id"),
        padding=meta.get("padding_token_id"),
        add_bos=bool(meta.get("add_bos_token", model == "llama" or pre in ("llama-bpe", "tekken"))),  # as llama.cpp
        chat_template=file.metadata.get("tokenizer.chat_template"),
    )


def row_order(file: GgufFile, hf: str, config: ModelConfig) -> Tensor | None:
    """The order of a tensor's rows that we want: q and k of the llama architecture have other channels together."""
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(hf.split(".")[-2])
    if file.architecture != "llama" or heads is None:
        return None
    return halves_from_pairs(torch.arange(heads * config.head_dim), heads)


def sources_of(file: GgufFile, config: ModelConfig) -> dict[str, Any]:
    """The file's tensors by their Hugging Face names: those that the config wants, no others."""
    wanted = slots(config)
    sources = {hf: t for name, t in file.tensors.items() if name != ROPE_FACTORS and (hf := gguf_to_hf(name))}
    strange = [name for name in file.tensors if name != ROPE_FACTORS and gguf_to_hf(name) not in wanted]
    missing = [name for name in wanted if name not in sources]
    if strange or missing:
        problem = f"unknown tensor {strange[0]}" if strange else f"no tensor for {missing[0]}"
        raise ForedraftError(f"{file.path}: {problem}; this variant of {file.architecture} is not supported")
    return sources


def _write_weights(file: GgufFile, config: ModelConfig, dtype: torch.dtype, path: Path, progress: Progress) -> None:
    wanted, sources = slots(config), sources_of(file, config)
    announced = [(name, tuple(int(n) for n in reversed(sources[name].shape))) for name in wanted]
    total = sum(int(sources[name].n_elements) for name in wanted)
    done = 0
    with TensorWriter(path, announced, dtype) as writer:
        for name in wanted:
            progress(f"converting {file.path.name}", done, total)
            writer.add(name, _blocks(file, name, sources[name], config))
            done += int(sources[name].n_elements)
    progress(f"converting {file.path.name}", done, total)


def _blocks(file: GgufFile, name: str, tensor: Any, config: ModelConfig) -> Iterator[Tensor]:
    """A tensor's values in float32, some rows at a time; q and k of the llama architecture whole, to reorder them."""
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
    if file.architecture == "llama" and heads is not None:
        yield halves_from_pairs(dequantised(file, tensor, slice(None)), heads)
        return
    rows = max(1, BLOCK_ELEMENTS // int(tensor.shape[0]))
    count = len(tensor.data) if len(tensor.shape) > 1 else 1
    for start in range(0, count, rows):
        yield dequantised(file, tensor, slice(start, start + rows) if count > 1 else slice(None))


def dequantised(file: GgufFile, tensor: Any, rows: slice) -> Tensor:
    """A tensor's values in float32."""
    import gguf

    try:
        with np.errstate(all="ignore"):  # damaged scales give infinite weights, which show when the model runs
            return torch.tensor(gguf.quants.dequantize(tensor.data[rows], tensor.tensor_type))
    except NotImplementedError:
        kind = tensor.tensor_type.name
        raise ForedraftError(f"{file.path}: {tensor.name} is quantised as {kind}, which gguf cannot read") from None


def _rope_scaling(file: GgufFile, raw: Mapping[str, Any]) -> dict[str, Any]:
    kind = file.value("rope.scaling.type", "linear")  # as llama.cpp: a factor by itself scales linearly
    factor = float(file.value("rope.scaling.factor", file.value("rope.scale_linear", 1.0)))
    if ROPE_FACTORS in file.tensors:
        return {"rope_scaling": _llama3_scaling(file, raw)}
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {}
    return {"rope_scaling": {"rope_type": kind, "factor": factor}}


def _llama3_scaling(file: GgufFile, raw: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp keeps only the resulting factors: recover Meta's parameters and check that they give the same ones."""
    factors = dequantised(file, file.tensors[ROPE_FACTORS], slice(None))
    scaling = {
        "rope_type": "llama3",
        "factor": round(float(factors.max()), 4),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain = frequencies(ModelConfig.from_hf(raw))
    scaled = frequencies(ModelConfig.from_hf({**raw, "rope_scaling": scaling}))
    if factors.shape != plain.shape or not torch.allclose(plain / scaled, factors, rtol=1e-3):
        raise ForedraftError(f"{file.path}: its rope factors are not those of Llama 3; use the Hugging Face folder")
    return scaling


def _tensor(file: GgufFile, name: str) -> Any:
    if name not in file.tensors:
        raise ForedraftError(f"{file.path} lacks the tensor {name}; it is no complete language model")
    return file.tensors[name]


def _short(value: float) -> float:
    """A float32 of the file as the decimal that was meant: 9.999999747378752e-06 -> 1e-05."""
    return float(f"{value:.6g}")
