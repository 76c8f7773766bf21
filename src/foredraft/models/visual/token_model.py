"""The token model of the demo: its shape, its classes and its tokenizer.

A text is a class and then the codes of an image, row by row. Ids below `codes` are codes, then come the classes, and
last the class `any`, which stands for no class at all: classifier-free guidance needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")
ANY = "any"
NAMES = (*CLASSES, ANY)
SIDE = 28  # pixels of an image
GUIDANCE = 2.0  # scale of classifier-free guidance; 1 = none


def visual_config(codes: int, length: int, width: int = 128, layers: int = 8, ff: int = 256) -> dict[str, Any]:
    """config.json of the token model; `guidance` is what only visual models have: the scale, and where codes end.

    The vocabulary is padded to a multiple of 16, as native products want it.
    """
    return {
        "model_type": "llama",
        "vocab_size": -(-(codes + len(CLASSES) + 1) // 16) * 16,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "num_key_value_heads": width // 32,
        "head_dim": 32,
        "intermediate_size": ff,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "max_position_embeddings": 1 + length,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": None,
        "guidance": {"scale": GUIDANCE, "codes": codes, "none": codes + len(CLASSES)},
    }


def visual_tokenizer(codes: int, path: Path) -> None:
    """Write tokenizer.json: a word for each code and for each class, with blanks between them."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import WordPiece
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = [f"c{code}" for code in range(codes)] + list(NAMES)
    made = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=""))
    made.pre_tokenizer = WhitespaceSplit()
    made.decoder = WordPiece(prefix="##", cleanup=False)
    made.save(str(path))
