"""Servers of other engines on this machine's own address, for as long as something is measured with them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foredraft.integrations.load_back.engines import VLLM_ENVIRONMENT

WAIT = 240  # seconds for a server to start


@contextmanager
def vllm_server(
    python: str, model: Path, speculative: Mapping[str, Any] | None, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """vLLM's OpenAI server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "smollm2"]
    words += ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "16", "--enforce-eager"]
    words += ["--no-enable-prefix-caching", "--host", "127.0.0.1", "--port", str(port)]
    if speculative is not None:
        words += ["--speculative-config", json.dumps(dict(speculative))]
    more = VLLM_ENVIRONMENT | dict(environment or {})
    process = subprocess.Popen([python, *words], env=os.environ | more, stdout=sys.stderr)
    url = f"http://127.0.0.1:{port}"
    try:
        _await(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise RuntimeError("the server did not start")


@contextmanager
def llama_server(python: str, model: Path, draft: Path | None, kind: str, length: int) -> Iterator[str]:
    """llama.cpp's server out of the wheel."""
    program = Path(__file__).with_name("llama_http.py")
    process = subprocess.Popen([python, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    job = {"model": str(model), "draft": None if draft is None else str(draft), "type": kind, "length": length}
    process.stdin.write(json.dumps(job | {"threads": 1}) + "\n")
    process.stdin.flush()
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.stdin.close()
        process.wait(timeout=60)


def spec_counts(url: str) -> tuple[int, int] | None:
    """Tokens that vLLM has drafted and accepted so far; None where a server does not say."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
    except (urllib.error.URLError, OSError):
        return None
    found = {}
    for name in ("num_draft_tokens_total", "num_accepted_tokens_total"):
        held = [line for line in lines if line.startswith(f"vllm:spec_decode_{name}")]
        found[name] = sum(int(float(line.rpartition(" ")[2])) for line in held)
    return (found["num_draft_tokens_total"], found["num_accepted_tokens_total"]) if any(found.values()) else None


def foredraft(*words: str) -> dict[str, Any]:
    """A command of ours, as anybody can type it; its JSON document."""
    done = subprocess.run([sys.executable, "-m", "foredraft", *words, "--json"], capture_output=True, text=True)
    if not done.stdout.strip():
        raise RuntimeError(f"foredraft {words[0]}: {done.stderr.strip().splitlines()[-1:]}")
    document: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return document
