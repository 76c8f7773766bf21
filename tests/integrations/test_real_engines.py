"""Exported heads in real engines, each in an environment of its own that an environment variable names.

FOREDRAFT_XLLAMACPP: the Python of an environment with `xllamacpp` (llama.cpp's server in a wheel; nothing else needed).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from foredraft import LLM, SamplingParams
from foredraft.integrations.export.exporter import ExportOrder, export_head
from foredraft.models import source_file

PYTHON = os.environ.get("FOREDRAFT_XLLAMACPP", "")
LENGTH, TOKENS = 4, 48
QUESTIONS = (
    "Why is the sky blue?",
    "Write a short poem about autumn.",
    "What is the capital of France?",
    "List five animals that live in the sea.",
    "How do I boil an egg?",
    "Explain what a prime number is.",
    "Translate 'good morning' into German.",
    "Tell me a story about a dog.",
    "What is 12 times 12? Show your work.",
    "Name three uses of copper.",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="FOREDRAFT_XLLAMACPP names no Python with xllamacpp"),
]


def served(prompts: list[list[int]], draft: Path | None = None, kind: str = "") -> list[dict[str, Any]]:
    job = {
        "model": str(source_file("smollm2")), "draft": None if draft is None else str(draft), "type": kind,
        "n_max": LENGTH, "prompts": prompts, "tokens": TOKENS, "threads": 1,
    }  # fmt: skip
    program = Path(__file__).with_name("llama_server.py")
    done = subprocess.run(
        [PYTHON, str(program)], input=json.dumps(job) + "\n", capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2", "plain")


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[list[int]]:
    return [llm.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS]


@pytest.fixture(scope="module")
def plain(prompts: list[list[int]]) -> list[dict[str, Any]]:
    return served(prompts)


@pytest.mark.parametrize(("kind", "name"), [("eagle3", "DRAFT_EAGLE3"), ("fastdraft", "DRAFT_SIMPLE")])
def test_llama_cpp_accepts_what_we_accept(
    kind: str, name: str, llm: LLM, prompts: list[list[int]], plain: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The same text with the head as without it, and as many of its tokens accepted as here, within 5%."""
    out = tmp_path / "out"
    export_head(ExportOrder(kind, "llama.cpp", out, "smollm2"))
    theirs = served(prompts, next(out.glob("*.gguf")), name)
    method = llm.build(f"{kind}:shape=chain,length={LENGTH}")
    ours = [llm.generate([p], SamplingParams(max_new_tokens=TOKENS), method=method)[0] for p in prompts]
    accepted, there = sum(o.stats.accepted for o in ours), sum(t["accepted"] for t in theirs)
    drafted = sum(o.stats.drafted for o in ours), sum(t["drafted"] for t in theirs)
    seconds = sum(t["seconds"] for t in plain), sum(t["seconds"] for t in theirs), sum(o.stats.seconds for o in ours)
    same = sum(a["text"] == b["text"] for a, b in zip(plain, theirs, strict=True))
    print(f"{kind}: ours {accepted}/{drafted[0]}, llama.cpp {there}/{drafted[1]}; {same} of {len(prompts)} texts equal")
    print(f"seconds: llama.cpp plain {seconds[0]:.1f}, with the head {seconds[1]:.1f}; ours {seconds[2]:.1f}")
    assert same >= len(prompts) - 1  # batches of another size round otherwise; a near-tie may fall the other way
    assert abs(accepted / drafted[0] - there / drafted[1]) < 0.05 * accepted / drafted[0]
