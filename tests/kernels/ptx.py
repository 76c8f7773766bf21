"""PTX instructions by their definitions: enough to run the words that turn weights wide."""

from __future__ import annotations

import re

import torch
from torch import Tensor


def halves(word: int) -> Tensor:
    return torch.tensor([word & 0xFFFF, word >> 16]).to(torch.uint16).view(torch.bfloat16)


def joined(pair: Tensor) -> int:
    low, high = pair.view(torch.uint16).tolist()
    return int(low) | int(high) << 16


def step(verb: str, of: list[int]) -> int:
    """One instruction of PTX, by its definition."""
    if verb == "mov.b32":
        return of[0]
    if verb == "prmt.b32":
        pool = (of[0] | of[1] << 32).to_bytes(8, "little")
        picked = [(pool[of[2] >> 4 * n & 7], of[2] >> 4 * n & 8) for n in range(4)]
        return int.from_bytes(bytes(255 * (byte >> 7) if sign else byte for byte, sign in picked), "little")
    if verb == "lop3.b32":
        columns = zip(*(f"{word:032b}" for word in of[:3]), strict=True)
        return int("".join(str(of[3] >> int("".join(bits), 2) & 1) for bits in columns), 2)
    if verb == "shr.u32":
        return of[0] >> of[1]
    if verb == "and.b32":
        return of[0] & of[1]
    if verb == "shl.b32":
        return of[0] << of[1] & 0xFFFFFFFF
    if verb == "or.b32":
        return of[0] | of[1]
    assert verb == "fma.rn.bf16x2", verb
    a, b, c = (halves(word).double() for word in of)
    return joined((a * b + c).to(torch.bfloat16))


def run(code: str, word: int, *more: int) -> Tensor:
    """Four bytes through the code: four numbers. More operands follow."""
    registers = {f"${n}": given for n, given in enumerate((word, *more), 2)}
    for line in code.splitlines():
        found = re.fullmatch(r"\s+([a-z][\w.]+) (.+);", line)
        if found:
            target, *given = found[2].split(", ")
            values = [registers[name] if name in registers else int(name, 0) for name in given]
            registers[target] = step(found[1], values)
    return torch.cat((halves(registers["$0"]), halves(registers["$1"])))
