"""Judges at the size of real pairs: what one costs inside a round, and what its features cost to write and learn."""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from pathlib import Path

import torch

from foredraft.core.shapes.base import Chain
from foredraft.core.verify import RULES
from foredraft.core.verify.lossy.judge import judge
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method
from foredraft.judge.fit.head import split_of
from foredraft.judge.fit.material import Course, OnDisk
from foredraft.judge.fit.shards import write_shards
from foredraft.judge.labels.record import LabelledText
from foredraft.models.judges import JudgeHead
from foredraft.models.judges.domain import fit_domain
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.types import Kind

from .kit import Bench, release, steps

READS, DRAFT, PROMPT, ANSWER = ("target", "evidence"), 25, 64, 192
SIZES = (30_000, 1_000_000)  # tokens that count


def judges(bench: Bench) -> None:
    """Random weights in the shapes of an 8B target and a 1B drafter; what is read is random text with random labels."""
    decoder = bench.decoder("llama-8b")
    layers = decoder.config.num_layers
    tap, length = layers // 2, 3 if bench.toy else DRAFT
    executor = bench.executor(decoder, slots=16, extra=512)
    width = decoder.config.hidden_size + 4
    small = bench.executor(bench.decoder("llama-1b"), extra=512)
    drafter = ModelDrafter(small, Chain(length, kind=Kind.CHOSEN), decoder.config.vocab_size)
    rounds(bench, Engine(executor), drafter, tap, width, length)
    for tokens in (12_000,) if bench.toy else SIZES:
        features(bench, executor, tap, tokens)
        release()


def rounds(bench: Bench, engine: Engine, drafter: ModelDrafter, tap: int, width: int, length: int) -> None:
    """A round that accepts all its drafts, by the exact rule and by judges that say yes to each."""
    exact = Method("exact", RULES["sample-and-match"], drafter)
    ways = {"linear": JudgeHead(width), "mlp of 96": JudgeHead(width, 96)}
    ways["mlp of 96 with its domain"] = JudgeHead(width, 96, fit_domain(torch.randn(4 * width, width)))
    first = steps(bench, engine, exact, 12, length + 1)
    bench.add(f"8B shape, 1B drafts {length}, exact rule", first, "ms")
    for name, head in ways.items():
        rule = judge(head.to(bench.device).requires_grad_(False), 0.0, reads=READS, tap=tap)
        took = steps(bench, engine, Method(f"judge, {name}", rule, drafter), 12, length + 1)
        again = steps(bench, engine, exact, 12, length + 1)
        bench.add(
            f"the same, judge, {name} ({took:.2f} ms), against the exact rule", took / min(first, again), "x", most=1.01
        )


def features(bench: Bench, executor: GraphExecutor, tap: int, tokens: int) -> None:
    """Features of so many tokens: written to disk, then a linear head and its domain learnt from there."""
    texts = random_texts(tokens, executor.vocab_size)
    folder = Path(tempfile.mkdtemp(dir=bench.out))
    try:
        bench.sync()
        begin = time.perf_counter()
        shards = write_shards(folder / "features", executor, texts, (tap,))
        written, size = time.perf_counter() - begin, shards.bytes
        material = OnDisk(shards)
        course = Course(split_of(material.of(lambda record: record.group)), bench.device)
        material.fit(READS, tap, course)
        material.domain(READS, tap, course, 0.005)
        learnt = time.perf_counter() - begin - written
    finally:
        shutil.rmtree(folder)
    what = f"features of {tokens:,} tokens, state of layer {tap} and evidence"
    bench.add(f"{what}, on disk", size / tokens, "bytes a token")
    bench.add(f"{what}, written", written, "s")
    bench.add(f"{what}, linear head and domain learnt", learnt, "s")
    if bench.device.type == "cuda":
        bench.add("peak memory of the device until then", torch.cuda.max_memory_allocated() / 2**30, "GiB")
    bench.add("peak memory of the host until then", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "GiB")


def random_texts(tokens: int, vocab: int) -> list[LabelledText]:
    """Prompts and answers of random ids; every answer's last token is wrong in one of three, all others are right."""
    made = torch.Generator().manual_seed(0)
    count = -(-tokens // ANSWER)
    ids = torch.randint(vocab, (count, PROMPT + ANSWER), generator=made).tolist()
    return [
        LabelledText.until_error(
            "random", str(i), text[:PROMPT], text[PROMPT:], -1 if i % 3 else ANSWER - 1, "checked"
        )
        for i, text in enumerate(ids)
    ]  # fmt: skip
