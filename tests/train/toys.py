"""A toy target and heads of every kind for it, untrained: what the tests of drafters and training share."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from foredraft.models import Decoder, ModelConfig, random_decoder
from foredraft.models.heads import ForerunnerHead, HeadSpec, Identity
from foredraft.train.bulk_generate import Task, write
from foredraft.train.corpus import Corpus
from foredraft.train.kinds import KINDS, ContextKind, Settings
from foredraft.train.student import Pretrained
from foredraft.train.teacher import Teacher, TeacherOutputs
from foredraft.train.trainer import Plan, Trainer

DRAFTING = (
    "eagle3", "eagle", "griffin", "dovetail", "fastdraft", "medusa", "mlp-speculator", "kangaroo",
    "eesd", "koala", "koala-medusa", "falcon", "sdsat", "s2d", "forerunner",
)  # fmt: skip


def target(vocab: int = 61, layers: int = 6, seed: int = 1, sharpness: float = 4.0) -> Decoder:
    """Random weights, scaled up so that its distributions are not flat."""
    config = ModelConfig("llama", vocab, 32, layers, 4, 2, 8, 48, max_position=128, tied_head=True)
    made = random_decoder(config, seed=seed)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data *= sharpness
    return made


def settings(kind: str, words: int = 40, length: int = 3, layers: int = 6) -> Settings:
    base = replace(KINDS[kind].defaults, draft_vocab_size=words, length=length, exit_layer=2)
    taps = {"eagle3": (1, layers // 2, layers - 1), "medusa": (-1,), "koala-medusa": (-1,)}  # the speculator has two
    return replace(base, extra=base.extra | ({"taps": taps[kind]} if kind in taps else {}))


def identity(decoder: Decoder) -> Identity:
    return Identity.of(decoder.config, "a toy's tokenizer")


def outputs(
    decoder: Decoder, kind: str, words: int = 40, rows: int = 3, length: int = 20, seed: int = 0
) -> TeacherOutputs:
    """Random texts, all of which count."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, decoder.config.vocab_size, (rows, length), generator=generator)
    return outputs_of(decoder, kind, ids, words)


def outputs_of(decoder: Decoder, kind: str, ids: torch.Tensor, words: int = 40) -> TeacherOutputs:
    """What a kind's teacher says of texts, all of which count."""
    teacher = Teacher(decoder, torch.arange(words))
    own, chosen = settings(kind, layers=decoder.config.num_layers), KINDS[kind]
    read = chosen.reads(decoder, own) if isinstance(chosen, ContextKind) else ()
    return teacher.outputs(ids, torch.ones_like(ids, dtype=torch.bool), chosen.taps(decoder, own), read)


def head(
    decoder: Decoder, kind: str, words: int = 40, length: int = 3, seed: int = 0, noise: float = 0.1
) -> tuple[nn.Module, HeadSpec]:
    """An untrained head whose every part has something to say."""
    torch.manual_seed(seed)
    look = outputs(decoder, kind, words)
    own = settings(kind, words, length, decoder.config.num_layers)
    spec = KINDS[kind].describe(decoder, identity(decoder), own, look)
    made = KINDS[kind].build(decoder, spec, look.words)
    for name, parameter in made.named_parameters():
        if not name.startswith(made.borrowed) and parameter.dim() > 1:  # type: ignore[arg-type]
            parameter.data += noise * torch.randn_like(parameter)
    return made.requires_grad_(False), spec


def forerunner(decoder: Decoder, words: int = 40, length: int = 5) -> ForerunnerHead:
    """One that copies aloud."""
    made, _ = head(decoder, "forerunner", words, length)
    assert isinstance(made, ForerunnerHead)
    made.pointer.matched += 8.0
    return made


_WRITTEN: dict[object, Corpus] = {}


def corpus(decoder: Decoder, rows: int = 64, new: int = 24) -> Corpus:
    """What the toy writes itself; the same toy, the same text, written once. Each caller gets its own to change."""
    key = (decoder.config, float(sum(p.double().abs().sum() for p in decoder.parameters())), rows, new)
    if key not in _WRITTEN:
        _WRITTEN[key] = _write(decoder, rows, new)
    return deepcopy(_WRITTEN[key])


def _write(decoder: Decoder, rows: int, new: int) -> Corpus:
    tasks = [Task([1 + i % 7, 5 + i % 50, 9][: 2 + i % 2], 0.0 if i % 2 else 1.0) for i in range(rows)]
    texts = write(decoder, tasks, new, {0}, seed=1)
    ids, written = np.zeros((rows, new + 3), np.uint16), np.zeros((rows, new + 3), bool)
    for i, (task, text) in enumerate(zip(tasks, texts, strict=True)):
        line = task.prompt + text
        ids[i, : len(line)] = line
        written[i, len(task.prompt) : len(line)] = True
    return Corpus(ids, written, np.array([t.temperature for t in tasks], np.float32), "toy")


def trainer(
    decoder: Decoder,
    folder: Path,
    kinds: tuple[str, ...],
    steps: int = 8,
    rows: int = 8,
    begin: dict[str, Pretrained] | None = None,
    every: int = 4,  # steps between evaluations; at 0 nothing is saved on the way either
    words: int = 40,
) -> Trainer:
    saving = 0.0 if every else 1e9
    plan = Plan(steps=steps, rows=rows, held_out=8, try_length=3, try_every=every, save_seconds=saving)
    chosen = [(KINDS[kind], settings(kind, words)) for kind in kinds]
    return Trainer(decoder, identity(decoder), corpus(decoder), chosen, plan, folder, begin)
