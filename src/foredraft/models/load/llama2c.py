"""llama2.c checkpoints (version 0, float32, with tokenizer.bin after the weights) as Hugging Face folders.

The file is seven ints, then every kind of weight for all layers at once, in a fixed order. It refuses to know the
later, versioned layouts.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ForedraftError
from .folders import Progress, appearing, mark, silent
from .tensorfile import TensorWriter
from .vocabulary import Role, Vocabulary, write_tokenizer
from .weight_names import halves_from_pairs

HEADER = struct.Struct("<7i")
BYTES = range(3, 259)  # ids of the 256 single bytes in Llama 2's vocabulary; 0 to 2 are <unk>, <s> and </s>


@dataclass(frozen=True, slots=True)
class Header:
    """The seven ints of a file, and the layout that follows from them."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    positions: int
    tied: bool

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name and shape of each tensor in file order; `{}` stands for the layer of a stacked one."""
        d, layers, kv = self.hidden, self.layers, self.kv_heads * self.head_dim
        shapes = {
            "model.embed_tokens.weight": (self.vocab, d),
            "model.layers.{}.input_layernorm.weight": (layers, d),
            "model.layers.{}.self_attn.q_proj.weight": (layers, d, d),
            "model.layers.{}.self_attn.k_proj.weight": (layers, kv, d),
            "model.layers.{}.self_attn.v_proj.weight": (layers, kv, d),
            "model.layers.{}.self_attn.o_proj.weight": (layers, d, d),
            "model.layers.{}.post_attention_layernorm.weight": (layers, d),
            "model.layers.{}.mlp.gate_proj.weight": (layers, self.inner, d),
            "model.layers.{}.mlp.down_proj.weight": (layers, d, self.inner),
            "model.layers.{}.mlp.up_proj.weight": (layers, self.inner, d),
            "model.norm.weight": (d,),
            "rotations": (2, self.positions, self.head_dim // 2),  # we work them out ourselves
        }
        return shapes if self.tied else shapes | {"lm_head.weight": (self.vocab, d)}

    @property
    def size(self) -> int:
        """Bytes up to the end of the weights."""
        return HEADER.size + 4 * sum(math.prod(shape) for shape in self.weights().values())


def convert_llama2c(path: Path | str, out_folder: Path | str, progress: Progress = silent) -> Path:
    """Write a llama2.c checkpoint as a Hugging Face folder, which appears whole or not at all."""
    path, out_folder = Path(path), Path(out_folder)
    data = path.read_bytes()  # such models are small by design
    header = read_header(path, data)
    tensors = dict(_tensors(header, data))
    with appearing(out_folder) as folder:
        announced = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
        with TensorWriter(folder / "model.safetensors", announced, torch.float32) as writer:
            for done, (name, tensor) in enumerate(tensors.items()):
                writer.add(name, (tensor,))
                progress(f"converting {path.name}", done + 1, len(tensors))
        write_tokenizer(read_vocabulary(path, data[header.size :], header.vocab), folder)
        (folder / "config.json").write_text(json.dumps(_hf_config(header), indent=2), encoding="utf-8")
        mark(folder, path)
    return out_folder


def read_header(path: Path, data: bytes) -> Header:
    if len(data) < HEADER.size:
        raise ForedraftError(f"{path} is truncated; delete it and run again")
    hidden, inner, layers, heads, kv_heads, vocab, positions = HEADER.unpack_from(data)
    # a negative vocabulary says that the head is not the embedding
    header = Header(hidden, inner, layers, heads, kv_heads, abs(vocab), positions, tied=vocab > 0)
    plain = all(0 < n < 1 << 20 for n in (hidden, inner, layers, heads, kv_heads, abs(vocab), positions))
    if not plain or hidden % heads or heads % kv_heads or len(data) < header.size:
        raise ForedraftError(f"{path} is truncated or no llama2.c checkpoint; delete it and run again")
    return header


def read_vocabulary(path: Path, data: bytes, count: int) -> Vocabulary:
    """tokenizer.bin: the longest piece's length, then score, length and bytes of each piece."""
    pieces: list[str] = []
    scores: list[float] = []
    place = 4
    try:
        for index in range(count):
            score, length = struct.unpack_from("<fi", data, place)
            piece = data[place + 8 : place + 8 + length]
            place += 8 + length
            pieces.append(f"<0x{index - BYTES.start:02X}>" if index in BYTES else _piece(piece))
            scores.append(score)
    except (struct.error, UnicodeDecodeError):
        raise ForedraftError(f"{path} holds no complete tokenizer.bin; delete it and run again") from None
    roles = [Role.BYTE if i in BYTES else Role.NORMAL for i in range(count)]
    roles[:3] = [Role.UNKNOWN, Role.CONTROL, Role.CONTROL]
    return Vocabulary("llama", pieces, roles, scores=scores, bos=1, eos=2, unknown=0, add_bos=True)


def _piece(raw: bytes) -> str:
    """llama2.c writes sentencepiece's space mark as a space, and its two control tokens between line ends."""
    text = raw.decode()
    return text.strip("\n") if text in ("\n<s>\n", "\n</s>\n") else text.replace(" ", "▁")


def _tensors(header: Header, data: bytes) -> Iterator[tuple[str, Tensor]]:
    place = HEADER.size
    for name, shape in header.weights().items():
        stacked = torch.frombuffer(bytearray(data[place : place + 4 * math.prod(shape)]), dtype=torch.float32)
        stacked = stacked.view(shape)
        place += 4 * math.prod(shape)
        if "{}" in name:
            heads = {"q_proj": header.heads, "k_proj": header.kv_heads}.get(name.split(".")[-2])
            for index, tensor in enumerate(stacked):
                yield name.format(index), tensor if heads is None else halves_from_pairs(tensor, heads)
        elif name != "rotations":
            yield name, stacked


def _hf_config(header: Header) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": header.vocab,
        "hidden_size": header.hidden,
        "num_hidden_layers": header.layers,
        "num_attention_heads": header.heads,
        "num_key_value_heads": header.kv_heads,
        "head_dim": header.head_dim,
        "intermediate_size": header.inner,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": header.positions,
        "tie_word_embeddings": header.tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
