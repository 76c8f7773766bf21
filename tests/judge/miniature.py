"""A tiny model in a folder, with a tokenizer of letters: what the tests of judges run on. Random, but a decoder."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from foredraft.judge.labels.record import RIGHT, WRONG, LabelledText
from foredraft.models import ModelConfig, random_decoder
from foredraft.models.load.weight_names import slots
from foredraft.recipes.loading import Loaded, Place, load
from foredraft.runtime import Rows

LETTERS = sorted(set(string.printable) - set("\t\r\x0b\x0c"))
END = "<end>"  # stops an answer; the tool token only looks like one
TOOL = "<tool>"


def write_model(folder: Path, seed: int = 0, layers: int = 3, hidden: int = 32, sharpness: float = 12.0) -> Path:
    """Random weights, scaled up so that distributions are not flat."""
    folder.mkdir(parents=True, exist_ok=True)
    config = ModelConfig("llama", len(LETTERS) + 3, hidden, layers, 4, 2, 8, 48, max_position=512, tied_head=False)
    made = random_decoder(config, seed=seed)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data *= sharpness
    own = dict(made.named_parameters(remove_duplicate=False))
    save_file(
        {name: own[s.parameter][s.start : s.stop].clone() for name, s in slots(config).items()},
        folder / "model.safetensors",
    )
    about = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": config.vocab_size,
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "intermediate_size": 48, "max_position_embeddings": 512, "tie_word_embeddings": False,
        "rms_norm_eps": config.norm_eps, "rope_theta": config.rope_theta, "hidden_act": "silu", "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(about), encoding="utf-8")
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    vocab = {token: i for i, token in enumerate(["<unk>", END, TOOL, *LETTERS])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", END, TOOL)])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}), encoding="utf-8")


def loaded(folder: Path, slots: int = 4) -> Loaded:
    return load(str(folder), Place("fp32", "cpu", slots, 512))


def texts(target: Loaded, count: int, length: int = 24, tap: int = -1, seed: int = 0) -> list[LabelledText]:
    """Random texts whose labels follow a linear rule on the target's states at a tap, right and wrong equally often."""
    generator = torch.Generator().manual_seed(seed)
    vocab, size = target.executor.vocab_size, target.executor.hidden_size
    lines = torch.randint(3, vocab, (count, length), generator=generator).tolist()
    states = [_states(target, line, tap)[4:] for line in lines]
    rule = torch.randn(size, generator=generator)
    middle = (torch.cat(states) @ rule).median()
    found = []
    for number, (line, own) in enumerate(zip(lines, states, strict=True)):
        labels = [RIGHT if value > middle else WRONG for value in (own @ rule).tolist()]
        found.append(LabelledText("toy", f"g{number // 2}", tuple(line[:4]), tuple(line[4:]), tuple(labels), "file"))
    return found


def _states(target: Loaded, line: list[int], tap: int) -> torch.Tensor:
    target.executor.rollback([0], [0])
    out = target.executor.forward(Rows.chains([0], [line], target.executor.device), (tap,))
    target.executor.rollback([0], [0])
    return out.hidden[tap].float()
