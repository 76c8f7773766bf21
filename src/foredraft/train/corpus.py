"""Texts to train on: rows of token ids, which of them the target wrote itself, and at what temperature.

Loss belongs on what the target wrote. Where it fell into a loop, the loop counts as not written: a drafter would learn
nothing there but to repeat. Files are .npz with `ids` [N, T], `temperature` [N] and, unless the rows are chats in the
target's template, `written` [N, T] (bits packed along T) and `length` [N]. `tokenizer` names the one whose ids they
hold; files of older versions lack it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from ..core.repetition import find_loop
from ..errors import ForedraftError, UsageError
from ..jsonl import replacing
from ..models import Tokenizer

PART_ROWS = 64  # rows of like length that are read together: fewer, and a GPU waits for the launches of its kernels
WORTH = 16384  # tokens of padding that a further part must save: about what its launches cost a small model
PLAIN_ROW = 256  # tokens of a row of plain text
BLOCK = 32  # widths of batches: few different ones, so that memory and plans are used again


class Part(NamedTuple):
    """Rows of a step that are read together."""

    ids: Tensor  # [n, T] int64
    written: Tensor  # [n, T] bool
    rows: np.ndarray  # [n] their numbers in the corpus


@dataclass(frozen=True, slots=True)
class Corpus:
    """Rows of texts in memory."""

    ids: np.ndarray  # [N, T] uint16 or uint32
    written: np.ndarray  # [N, T] bool: the target wrote this token, and not inside a loop
    temperature: np.ndarray  # [N] float32, of what was written
    digest: str = ""
    times: np.ndarray = field(default_factory=lambda: np.ones(0, dtype=np.int64))  # [N] comings in a pass; [] = once
    lengths: np.ndarray = field(init=False)  # [N] tokens up to the last written one; what follows teaches nothing

    def __post_init__(self) -> None:
        last = self.written.shape[1] - self.written[:, ::-1].argmax(axis=1)
        object.__setattr__(self, "lengths", np.where(self.written.any(axis=1), last, 0))

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, which: np.ndarray) -> Corpus:
        times = self.times[which] if len(self.times) else self.times
        return Corpus(self.ids[which], self.written[which], self.temperature[which], self.digest, times)

    def _order(self) -> np.ndarray:
        """The rows of one pass over the texts."""
        every = np.arange(len(self))
        return np.repeat(every, self.times) if len(self.times) else every

    def split(self, held_out: int, seed: int = 0) -> tuple[Corpus, Corpus]:
        """(training rows, held-out rows); the held-out ones are greedy, since they simulate greedy decoding. Other
        answers to their prompts are in neither: a drafter that had seen them would know what is asked of it."""
        answered = self.written.any(axis=1)
        if not answered.any():
            raise UsageError(
                f"none of the {len(self)} rows holds an answer of the target; let it write some: foredraft data"
            )
        greedy = np.flatnonzero((self.temperature == 0) & answered)
        if len(greedy) < 2:
            raise UsageError(
                f"of {len(self)} rows {len(greedy)} are greedy, and two are needed to hold one out; make some: "
                "foredraft data --temperatures 0,0.7"
            )
        held = np.random.default_rng(seed).permutation(greedy)[: min(held_out, len(greedy) // 2)]
        asked = {self._prompt(row) for row in held} - {b""}
        rest = np.setdiff1d([row for row in range(len(self)) if self._prompt(row) not in asked], held).astype(np.int64)
        if not len(rest):
            raise UsageError("all rows answer the prompts that are held out; write more: foredraft data")
        return self.rows(rest), self.rows(np.sort(held))

    def check_ids(self, vocab_size: int) -> None:
        """Refuse text of another tokenizer, as far as its ids show it."""
        strange = [int(end) for end in (self.ids.min(initial=0), self.ids.max(initial=0)) if not 0 <= end < vocab_size]
        if strange:
            raise UsageError(
                f"the text holds token {strange[0]}, and the target knows {vocab_size}: another model wrote it; "
                "let this one write: foredraft data --target MODEL"
            )

    def _prompt(self, row: int) -> bytes:
        """What stands before a row's first written token."""
        return self.ids[row, : self.written[row].argmax()].tobytes()

    def batch(self, step: int, rows: int, seed: int, rank: int = 0, world: int = 1) -> list[Part]:
        """The parts of a step: rows of like length together, no wider than they need, so that little is padding. All
        of a step's parts together are a fair sample of the texts.

        Passes follow one another, each in its own order. A step's rows depend on nothing but these numbers, so a run
        that was cut off goes on with the right ones.
        """
        every, each = self._order(), rows * world
        if len(every) < each:
            fewer = f", or give --rows {len(every) // world}" if len(every) >= world else ""
            raise UsageError(
                f"the corpus has {len(every)} rows to train on, and a step takes {each}; name more text{fewer}"
            )
        epoch, part = divmod(step, len(every) // each)
        order = np.random.default_rng((seed, epoch)).permutation(every)
        mine = order[part * each + rank * rows :][:rows]
        mine = mine[np.argsort(self.lengths[mine], kind="stable")]
        equal = np.array_split(mine, -(-rows // PART_ROWS))
        return [self._part(one) for part in equal for one in cut_by_length(part, self.lengths[part])]

    def _part(self, rows: np.ndarray) -> Part:
        width = -(-max(int(self.lengths[rows].max()), 2) // BLOCK) * BLOCK
        ids, written = self.ids[rows, :width], self.written[rows, :width]
        return Part(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(written), rows)

    def frequent(self, count: int, vocab_size: int) -> tuple[Tensor, float]:
        """The ids that the target writes most, the most frequent first, and the share of its text that they cover."""
        counts = np.bincount(self.ids[self.written].astype(np.int64), minlength=vocab_size)
        best = np.argsort(-counts, kind="stable")[:count]
        return torch.from_numpy(best), float(counts[best].sum() / max(counts.sum(), 1))

    def share(self, words: Tensor) -> float:
        """How much of the target's text consists of these ids."""
        return float(np.isin(self.ids[self.written], words.numpy()).mean())


def cut_by_length(rows: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Rows by ascending `lengths` in parts, each as wide as its last row: a long text makes few others as wide."""
    saved = np.arange(len(rows)) * (lengths[-1] - np.roll(lengths, 1))  # padding before each place, if it is cut there
    place = int(saved.argmax())
    if saved[place] < WORTH:
        return [rows]
    return [*cut_by_length(rows[:place], lengths[:place]), rows[place:]]


def load_corpus(paths: Sequence[Path], tokenizer: Tokenizer) -> Corpus:
    """Read files, or every .npz of a folder; chat rows without a mask are marked by the target's template. A .txt file
    is plain text, for pre-training.

    What is named twice counts twice: a pass over the texts comes by it twice.
    """
    named = Counter(f for path in paths for f in (sorted(path.glob("*.npz")) if path.is_dir() else [path]))
    if not named:
        what = f"{', '.join(map(str, paths))} holds no training text" if paths else "no training text was named"
        raise UsageError(f"{what}; make some with 'foredraft data' and give it as --data FOLDER")
    parts = [_read(file, tokenizer) for file in named]
    times = np.concatenate([np.full(len(part), n) for part, n in zip(parts, named.values(), strict=True)])
    width = max(part.ids.shape[1] for part in parts)
    marks = [part.digest * n for part, n in zip(parts, named.values(), strict=True)]
    digest = hashlib.sha256("".join(marks).encode()).hexdigest()
    ids = np.concatenate([_widen(part.ids, width) for part in parts])
    written = np.concatenate([_widen(part.written, width) for part in parts])
    heat = np.concatenate([part.temperature for part in parts])
    return Corpus(ids, written, heat, digest, times)


def save_corpus(path: Path, corpus: Corpus, tokenizer: str = "") -> None:
    """Write rows to a file; `tokenizer`: the `vocab_hash` of the one whose ids they hold, where it is known."""
    packed = np.packbits(corpus.written, axis=1)
    with replacing(path) as fresh, fresh.open("wb") as file:
        np.savez_compressed(
            file, ids=corpus.ids, written=packed, temperature=corpus.temperature, tokenizer=np.array(tokenizer)
        )


def _read_plain(file: Path, tokenizer: Tokenizer) -> Corpus:
    """A text file as rows of equal length; nobody wrote it but its author, and all of it counts."""
    try:
        data = file.read_bytes()
        ids = np.asarray(tokenizer.encode(data.decode("utf-8"), add_special=False), dtype=np.uint32)
    except (OSError, UnicodeDecodeError) as error:
        raise ForedraftError(f"{file} is no text in UTF-8 ({error})") from None
    rows = ids[: len(ids) // PLAIN_ROW * PLAIN_ROW].reshape(-1, PLAIN_ROW)
    heat = np.ones(len(rows), dtype=np.float32)
    return Corpus(rows, np.ones(rows.shape, dtype=bool), heat, hashlib.sha256(data).hexdigest())


def _read(file: Path, tokenizer: Tokenizer) -> Corpus:
    if file.suffix == ".txt":
        return _read_plain(file, tokenizer)
    try:
        with file.open("rb") as opened, np.load(opened) as raw:
            ids, temperature = raw["ids"], raw["temperature"].astype(np.float32)
            packed, wrote = raw.get("written"), str(raw.get("tokenizer", ""))
        _check_arrays(ids, temperature, packed)
    except (OSError, ValueError, KeyError, BadZipFile, zlib.error) as error:
        raise ForedraftError(f"{file} is no training text ({error}); make it with 'foredraft data'") from None
    if wrote and wrote != tokenizer.vocab_hash():
        raise UsageError(
            f"{file} was written with another tokenizer ({wrote[:12]}, not {tokenizer.vocab_hash()[:12]}); "
            "let this target write: foredraft data --target MODEL"
        )
    if packed is not None:
        written = np.unpackbits(packed, axis=1, count=ids.shape[1]).astype(bool)
    else:
        written = answers(ids, tokenizer)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Corpus(ids, written, temperature, digest)


def _check_arrays(ids: np.ndarray, temperature: np.ndarray, packed: np.ndarray | None) -> None:
    """ValueError unless a file's arrays are those of a corpus."""
    if ids.ndim != 2 or ids.dtype.kind not in "iu":
        raise ValueError(f"ids are {ids.dtype} {list(ids.shape)}, not whole numbers [N, T]")
    if temperature.shape != (len(ids),):
        raise ValueError(f"temperature is {list(temperature.shape)}, not [{len(ids)}]")
    bits = (len(ids), -(-ids.shape[1] // 8))
    if packed is not None and (packed.dtype != np.uint8 or packed.shape != bits):
        raise ValueError(f"written is {packed.dtype} {list(packed.shape)}, not bits {list(bits)}")


def answers(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Which tokens of chats in the target's template are answers, loops left out; the closing token counts too."""
    probe = [{"role": "user", "content": "x"}]
    header = tokenizer.encode_chat(probe)[len(tokenizer.encode_chat(probe, add_generation_prompt=False)) :]
    turn = [*probe, {"role": "assistant", "content": "y"}]
    ends = set(tokenizer.encode_chat(turn, add_generation_prompt=False)[len(tokenizer.encode_chat(probe)) :])
    ends -= set(tokenizer.encode("y", add_special=False)) | set(tokenizer.encode("\n", add_special=False))
    written = np.zeros(ids.shape, dtype=bool)
    for row, line in enumerate(ids.tolist()):
        for begin, end in _spans(line, header, ends):
            loop = find_loop(line[begin:end], ends)
            written[row, begin : begin + loop.cut if loop else end] = True
    return written


def _spans(line: list[int], header: list[int], ends: set[int]) -> Iterator[tuple[int, int]]:
    at = 0
    while True:
        begin = _find(line, header, at)
        if begin < 0:
            return
        begin += len(header)
        end = next((i + 1 for i in range(begin, len(line)) if line[i] in ends), len(line))
        yield begin, end
        at = end


def _find(line: list[int], what: list[int], at: int) -> int:
    for i in range(at, len(line) - len(what) + 1):
        if line[i] == what[0] and line[i : i + len(what)] == what:
            return i
    return -1


def _widen(block: np.ndarray, width: int) -> np.ndarray:
    return np.pad(block, ((0, 0), (0, width - block.shape[1])))
