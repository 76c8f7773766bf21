"""A tiny model in a folder whose tokenizer knows the words of one family, and that family: sums of two digits."""

from __future__ import annotations

import json
import random
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from foredraft.judge.problems.families import ending, lines
from foredraft.judge.problems.problem import Problem, result, wording
from foredraft.models import ModelConfig, random_decoder
from foredraft.models.load.weight_names import slots

FAMILY = "digits"
END = "<end>"


def digits(chance: random.Random, voice: str = "") -> Problem:
    """a + b. Whoever always answers 5 is right in one of four."""
    a, b = chance.randrange(1, 5), chance.randrange(1, 5)
    lead = wording(("First, ", "So ", "Well, "), 2)
    say = wording((f"{a} plus {b} is ", f"{b} and {a} make "))
    steps = lines([lead, say, result(a + b, a + b + 1)], ending(a + b))
    return Problem(FAMILY, f"{a} {b}", steps, str(a + b))


def make_folder(folder: Path, hidden: int = 64, layers: int = 2) -> Path:
    """Random weights, loud enough that a delta has something to work with."""
    tokenizer = _tokenizer()
    size = tokenizer.get_vocab_size()
    heads, inner = 4, 2 * hidden
    config = ModelConfig("llama", size, hidden, layers, heads, heads, hidden // heads, inner, tied_head=True)
    made = random_decoder(config, seed=1)
    for name, parameter in made.named_parameters():
        parameter.data *= 5 if name == "embedding" else 1 if name.endswith("norm") else 4
    own = dict(made.named_parameters(remove_duplicate=False))
    weights = {name: own[s.parameter][s.start : s.stop].clone() for name, s in slots(config).items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    raw = {
        "model_type": "llama", "vocab_size": size, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": heads, "intermediate_size": inner,
        "max_position_embeddings": 512, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
        "eos_token_id": tokenizer.token_to_id(END),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _tokenizer() -> Tokenizer:
    """Words with the space before them, single digits, single signs."""
    split = pre_tokenizers.Split(Regex(r" ?[A-Za-z]+|\d|\n|[^\w\n]"), "isolated")
    chance = random.Random(0)
    problems = [digits(chance) for _ in range(400)]
    texts = [p.write(chance, style, 0.5, 0.5) for p in problems for style in (0, 1)] + [p.question for p in problems]
    seen = {piece for text in texts for piece, _ in split.pre_tokenize_str(text)} | set("0123456789\n")
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate([END, *sorted(seen)])}, unk_token=END))
    made.pre_tokenizer, made.decoder = split, decoders.Fuse()
    return made
