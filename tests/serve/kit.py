"""Real servers on tiny models, in a thread of the test's own process."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import torch
import uvicorn
from safetensors.torch import save_file

from foredraft import LLM
from foredraft.models import resolve
from foredraft.models.judges import Judge, JudgeHead, JudgeSpec, save_judge
from foredraft.recipes.judge_rules import probe_states, target_identity
from foredraft.serve.engine_thread import State
from foredraft.serve.listen import configure, listen
from foredraft.serve.service import Service
from foredraft.serve.settings import Limits, Settings

Load = Callable[[], LLM]
MODEL = "tiny"
JSON = {"Content-Type": "application/json"}


@dataclass
class Running:
    """A server and a client of it."""

    url: str
    service: Service
    client: httpx.Client

    @property
    def llm(self) -> LLM:
        return self.service.worker.llm

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/v1/{path}", json={"model": MODEL} | body)

    def metric(self, name: str, **labels: str) -> float:
        found = self.service.metrics.registry.get_sample_value(f"foredraft_{name}", labels)
        return found or 0.0

    def wait(self, true: Callable[[], bool], seconds: float = 120.0) -> None:
        """Until something is so, or the test fails; the limit is for a machine that is busy with other things."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.005)

    @property
    def running(self) -> int:
        return len(self.llm.engine.scheduler.running)


def make_tiny(folder: Path) -> Path:
    """A model of random weights with the default model's tokenizer."""
    size, inner, heads, kv_heads, layers, vocab = 32, 64, 4, 2, 2, 49152
    shape = {"hidden_size": size, "intermediate_size": inner, "num_attention_heads": heads}
    shape |= {"num_key_value_heads": kv_heads, "num_hidden_layers": layers, "vocab_size": vocab}
    rest = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 128}
    rest |= {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "eos_token_id": 2, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(shape | rest), encoding="utf-8")
    narrow = size // heads * kv_heads
    shapes = {"model.embed_tokens.weight": (vocab, size), "model.norm.weight": (size,)}
    for layer in (f"model.layers.{i}" for i in range(layers)):
        shapes |= {f"{layer}.{name}.weight": (size,) for name in ("input_layernorm", "post_attention_layernorm")}
        for name, rows in (("q", size), ("k", narrow), ("v", narrow), ("o", size)):
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = (rows, size)
        for name, rows, columns in (("gate", inner, size), ("up", inner, size), ("down", size, inner)):
            shapes[f"{layer}.mlp.{name}_proj.weight"] = (rows, columns)
    chance = torch.Generator().manual_seed(0)
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else 0.3 * torch.randn(shape, generator=chance)
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors")
    source = resolve("smollm2")
    for file in (*source.glob("*token*"), *source.glob("chat_template.jinja")):
        shutil.copy(file, folder)
    return folder


def tiny_llm(
    folder: Path, method: str = "suffix", slots: int = 4, pause: float = 0.0, store: str | None = None
) -> Load:
    """How to load the tiny model; `pause` makes every step of the engine take so many seconds longer."""

    def load() -> LLM:
        llm = LLM(str(folder), method, store=store, dtype="fp32", batch_size=slots)
        step = llm.engine.step

        def slow() -> Any:
            time.sleep(pause)
            return step()

        if pause:
            llm.engine.step = slow  # type: ignore[method-assign]
        return llm

    return load


@contextmanager
def serving(
    load: Load, limits: Limits | None = None, ready: bool = True, send_buffer: int | None = None, **settings: Any
) -> Iterator[Running]:
    """A server at a free port. The network takes `send_buffer` bytes of a reply that nobody reads, else megabytes."""
    settings = {"warm_up": False} | settings  # tests count steps, break them, or have little time
    service = Service(load, Settings(MODEL, limits or Limits(), **settings))
    listener = listen("127.0.0.1", 0)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # connections inherit it
    config = configure(service)
    config.timeout_graceful_shutdown = 60
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=120) as client:
            running = Running(url, service, client)
            running.wait(lambda: server.started)
            if ready:
                running.wait(lambda: service.state is not State.LOADING)
                assert service.state is State.READY, service.worker.failure
            yield running
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The documents of a stream; checks that it is complete."""
    lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        yield json.loads(line.removeprefix("data: "))


def make_judge(model: Path, folder: Path, threshold: float | None = 0.5, reads: tuple[str, ...] = ("target",)) -> Path:
    """A judge of random weights for a tiny model; which tokens it likes follows from their states alone."""
    target = LLM(str(model), "plain", dtype="fp32").target
    size, probe = target.executor.hidden_size, tuple(range(5, 25))
    head = JudgeHead(size * len(reads), 0)
    with torch.no_grad():
        head.outer.weight.copy_(0.5 * torch.randn(head.outer.weight.shape, generator=torch.Generator().manual_seed(1)))
    spec = JudgeSpec("linear", reads, target_identity(target), threshold, width=size * len(reads), probe=probe)
    spec = replace(spec, draft_size=size if "draft" in reads else 0)
    save_judge(folder, Judge(head, spec, probe_states(target.executor, probe)))
    return folder


def judged_llm(model: Path, judge: Path, rule: str | None = None) -> Load:
    """Half of the tiny model drafts six tokens ahead, and a judge lets them pass."""
    return lambda: LLM(
        str(model), "draft-model", judge=str(judge), rule=rule, draft_length=6, dtype="fp32", batch_size=4
    )
