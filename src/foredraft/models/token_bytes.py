"""The bytes that each token of a vocabulary stands for, so that tokens of different tokenizers can be compared.

Byte-level vocabularies write bytes as printable characters, sentencepiece writes a space as one sign and rare bytes as
<0xNN>; other vocabularies are taken as they are written. Special tokens are equal only to special tokens.
"""

from __future__ import annotations

import json
import re

from .tokenizer import Tokenizer

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
SPECIAL = b"\xff special "  # 0xff occurs in no UTF-8 text


def token_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    """Token id -> its bytes."""
    raw = json.loads(tokenizer.backend.to_str())
    special = {entry["id"]: entry["content"] for entry in raw.get("added_tokens", ()) if entry.get("special")}
    written = json.dumps([raw.get("decoder"), raw.get("pre_tokenizer"), raw.get("normalizer")])
    byte_level, signs = '"ByteLevel"' in written, SPACE in json.dumps(written, ensure_ascii=False) or "u2581" in written
    table = _byte_signs() if byte_level else {}
    found = {}
    for text, index in tokenizer.backend.get_vocab(with_added_tokens=True).items():
        if index in special:
            found[index] = SPECIAL + special[index].encode()
        elif byte_level and all(sign in table for sign in text):
            found[index] = bytes(table[sign] for sign in text)
        elif signs and (match := BYTE.fullmatch(text)):
            found[index] = bytes([int(match[1], 16)])
        else:
            found[index] = (text.replace(SPACE, " ") if signs else text).encode()
    return found


def _byte_signs() -> dict[str, int]:
    """GPT-2's printable sign of each byte: itself where it is printable, else the next of those above 255."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
