"""A vocabulary as GGUF and llama2.c files store it, written out as Hugging Face tokenizer files.

Built directly instead of through transformers, whose GGUF reader ignores the file's pre-tokeniser name: SmolLM2
would then split "\n\n1" unlike it was trained. It knows byte-level BPE and sentencepiece BPE, and no models.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ForedraftError

if TYPE_CHECKING:
    import tokenizers

# Word patterns of the byte-level tokenizers, by the name that GGUF files give them. They differ in how they cut digits.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
WORDS = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
PLAIN = ("gpt-2", "default", "smollm")  # the GPT-2 pattern that ByteLevel carries itself


class Role(IntEnum):
    """What a piece is; the numbers are GGUF's token types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # special: never produced from plain text pieces
    USER_DEFINED = 4  # matched whole, but ordinary text
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Pieces in id order, and how text is cut into them."""

    model: str  # "gpt2" = byte-level BPE with merges, "llama" = sentencepiece BPE with scores
    pieces: Sequence[str]
    roles: Sequence[int]
    merges: Sequence[str] = ()  # gpt2: "left right", best first
    scores: Sequence[float] = ()  # llama: a merge's rank is its piece's score
    words: str = "default"  # gpt2: name of the word pattern
    space_prefix: bool = True  # llama: text starts with a space
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    padding: int | None = None
    add_bos: bool = False
    chat_template: str | None = None


def write_tokenizer(vocabulary: Vocabulary, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and, where there is one, chat_template.jinja."""
    build(vocabulary).save(str(folder / "tokenizer.json"))
    named = {"bos": vocabulary.bos, "eos": vocabulary.eos, "unk": vocabulary.unknown, "pad": vocabulary.padding}
    config: dict[str, Any] = {f"{k}_token": vocabulary.pieces[v] for k, v in named.items() if v is not None}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    if vocabulary.chat_template:
        (folder / "chat_template.jinja").write_text(vocabulary.chat_template, encoding="utf-8")


def build(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer of a vocabulary; its ids are the pieces' places."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing

    if vocabulary.model not in ("gpt2", "llama"):
        raise ForedraftError(f"tokenizers of type {vocabulary.model!r} are not supported; use the Hugging Face folder")
    tokenizer = _byte_level(vocabulary) if vocabulary.model == "gpt2" else _sentencepiece(vocabulary)
    for role in (Role.CONTROL, Role.USER_DEFINED, Role.UNKNOWN):
        special = role is not Role.USER_DEFINED
        chosen = [p for p, r in zip(vocabulary.pieces, vocabulary.roles, strict=True) if r == role]
        tokenizer.add_tokens([AddedToken(piece, normalized=False, special=special) for piece in chosen])
    if vocabulary.add_bos and vocabulary.bos is not None:
        bos = vocabulary.pieces[vocabulary.bos]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, vocabulary.bos)]
        )
    return tokenizer


def _byte_level(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    merges = [(left, right) for left, right in (merge.split(" ", 1) for merge in vocabulary.merges)]
    name, pattern = vocabulary.words, WORDS.get(vocabulary.words)
    if pattern is None and name not in PLAIN:
        warnings.warn(f"unknown pre-tokeniser {name!r}: words are cut as GPT-2 does", stacklevel=2)
    tokenizer = Tokenizer(models.BPE(_ids(vocabulary), merges, ignore_merges=pattern in (_LLAMA3, _TEKKEN)))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is not None:
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, level])
    elif name == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    else:
        tokenizer.pre_tokenizer = level
    if pattern is _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    unknown = None if vocabulary.unknown is None else vocabulary.pieces[vocabulary.unknown]
    merges = merges_from_scores(vocabulary)
    tokenizer = Tokenizer(models.BPE(_ids(vocabulary), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    prefix = [normalizers.Prepend("▁")] if vocabulary.space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, spaces])
    strip = [decoders.Strip(" ", 1, 0)] if vocabulary.space_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def merges_from_scores(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Sentencepiece joins the neighbours whose union scores best; as a merge list: every split of every piece."""
    ids = {p: i for i, p in enumerate(vocabulary.pieces) if vocabulary.roles[i] in (Role.NORMAL, Role.USER_DEFINED)}
    found = []
    for piece, index in ids.items():
        for cut in range(1, len(piece)):
            left, right = ids.get(piece[:cut]), ids.get(piece[cut:])
            if left is not None and right is not None:
                found.append((-vocabulary.scores[index], index, left, right))
    return [(vocabulary.pieces[left], vocabulary.pieces[right]) for _, _, left, right in sorted(found)]


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    ids = {piece: index for index, piece in enumerate(vocabulary.pieces)}
    if len(ids) != len(vocabulary.pieces):
        raise ForedraftError("the tokenizer holds a piece twice; the model file is damaged")
    return ids
