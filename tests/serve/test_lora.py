"""LoRA adapters by request: the numbers of a merged model, alone and beside others, and refused where none can run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from foredraft import LLM, SamplingParams
from foredraft.cli.app import run
from foredraft.errors import UsageError
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.runtime.hf.executor import HFExecutor
from foredraft.runtime.native.executor import NativeExecutor
from tests.runtime.tape import TapeGraphs

from .kit import Running, serving

RANK, ALPHA = 3, 6
SIZES = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
SIZES |= {"gate_proj": (64, 32), "up_proj": (64, 32), "down_proj": (32, 64)}
PROMPT = [5, 7, 9, 5, 7, 9, 5, 7]
PARAMS = SamplingParams(max_new_tokens=16, ignore_eos=True)


def make_adapter(folder: Path, seed: int, products: tuple[str, ...], **config: Any) -> Path:
    """As peft's save_pretrained writes it."""
    folder.mkdir(exist_ok=True)
    chance, tensors = torch.Generator().manual_seed(seed), {}
    for layer in range(2):
        for name in products:
            part = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            stem, (rows, columns) = f"base_model.model.model.layers.{layer}.{part}.{name}", SIZES[name]
            tensors[f"{stem}.lora_A.weight"] = torch.randn((RANK, columns), generator=chance) / 4
            tensors[f"{stem}.lora_B.weight"] = torch.randn((rows, RANK), generator=chance) / 4
    save_file(tensors, folder / "adapter_model.safetensors")
    written = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "target_modules": list(products)}
    (folder / "adapter_config.json").write_text(json.dumps(written | config))
    return folder


def tape_graphs(executor: GraphExecutor) -> GraphExecutor:
    executor.graphs = TapeGraphs(executor.device)
    return executor


def merge(model: Path, adapter: Path, folder: Path) -> Path:
    """The model with the adapter added into its weights: W + (alpha / r) B A, by the definition."""
    shutil.copytree(model, folder)
    weights, factors = load_file(model / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name in [key for key in factors if "lora_A" in key]:
        own = name.removeprefix("base_model.model.").replace(".lora_A", "")
        weights[own] = weights[own] + ALPHA / RANK * factors[name.replace("lora_A", "lora_B")] @ factors[name]
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One for every product, one for some parts of merged ones alone."""
    root = tmp_path_factory.mktemp("adapters")
    some = make_adapter(root / "some", 2, ("k_proj", "up_proj"))
    return {"every": str(make_adapter(root / "every", 1, tuple(SIZES))), "some": str(some)}


@pytest.fixture(scope="module")
def expected(
    tiny: Path, adapters: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str | None, list[int]]:
    """Greedy ids of the plain model and of merged ones."""
    root = tmp_path_factory.mktemp("merged")
    models: dict[str | None, Path] = {name: merge(tiny, Path(at), root / name) for name, at in adapters.items()}
    models[None] = tiny
    return {
        name: LLM(str(folder), "plain", dtype="fp32").generate([PROMPT], PARAMS)[0].token_ids
        for name, folder in models.items()
    }


@pytest.mark.parametrize("method", ["plain", "suffix", "draft-model"])
def test_each_request_has_the_numbers_of_its_own_merged_model(
    tiny: Path, adapters: dict[str, str], expected: dict[str | None, list[int]], method: str
) -> None:
    """Three in one batch, by drafters that know nothing of adapters; then one after the other in the same slots."""
    assert len({tuple(ids) for ids in expected.values()}) == 3
    llm = LLM(str(tiny), method, dtype="fp32", batch_size=3, share=True, lora=adapters)
    names: list[str | None] = ["every", None, "some"]
    requests = [llm.request(PROMPT, PARAMS, lora=name) for name in names]
    list(llm.events(requests))
    assert [request.sequence.output for request in requests] == [expected[name] for name in names]
    if method == "draft-model":
        assert all(request.stats.drafted for request in requests)
    for name in ("some", "every", None, "some"):
        request = llm.request(PROMPT, PARAMS, lora=name)
        list(llm.events([request]))
        assert request.sequence.output == expected[name]


def test_captured_passes_give_way_to_adapters(
    tiny: Path, adapters: dict[str, str], expected: dict[str | None, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA graphs: passes with adapters run step by step, and all others are captured, before and after."""
    make = lambda *given, **more: tape_graphs(GraphExecutor(*given, **more))  # noqa: E731
    monkeypatch.setattr("foredraft.recipes.loading.executor_for", make)
    llm = LLM(str(tiny), "suffix", dtype="fp32", batch_size=3, lora=adapters)
    captured = []
    for names in ([None], ["every", None, "some"], [None]):
        requests = [llm.request(PROMPT, PARAMS, lora=name) for name in names]
        list(llm.events(requests))
        assert [request.sequence.output for request in requests] == [expected[name] for name in names]
        captured.append(llm.target.executor.graphs.replayed)  # type: ignore[attr-defined]
    assert 0 < captured[0] == captured[1] < captured[2]


def test_what_an_adapter_has_read_is_reused_by_itself_alone(tiny: Path, adapters: dict[str, str]) -> None:
    llm = LLM(str(tiny), "plain", dtype="fp32", batch_size=4, share=True, lora=adapters)
    reused = {}
    for name in ("every", "some", None, "every"):
        request = llm.request(PROMPT, PARAMS, lora=name)
        list(llm.events([request]))
        reused[name] = request.stats.reused
    assert reused["some"] == reused[None] == 0 < reused["every"]


@pytest.fixture(scope="module")
def server(tiny: Path, adapters: dict[str, str]) -> Iterator[Running]:
    load = lambda: LLM(str(tiny), "suffix", dtype="fp32", batch_size=3, lora=adapters)  # noqa: E731
    with serving(load, adapters=tuple(adapters)) as running:
        yield running


def test_the_model_of_a_request_chooses(server: Running, expected: dict[str | None, list[int]]) -> None:
    listed = server.client.get("/v1/models").json()["data"]
    assert [each["id"] for each in listed] == ["tiny", "every", "some"] and listed[1]["parent"] == "tiny"
    assert server.client.get("/v1/models/some").json()["id"] == "some"
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "return_token_ids": True}

    def ask(name: str | None) -> list[int]:
        reply = server.client.post("/v1/completions", json=body | {"model": name or "tiny"}).json()
        assert reply["model"] == (name or "tiny")
        ids: list[int] = reply["choices"][0]["token_ids"]
        return ids

    read = lambda: server.post("embeddings", input="x").json()["data"]  # noqa: E731
    before, names = read(), ["every", None, "some"] * 2
    with ThreadPoolExecutor(len(names)) as pool:
        assert list(pool.map(ask, names)) == [expected[name] for name in names]
    assert read() == before  # in a slot where an adapter has written
    assert server.client.post("/v1/completions", json=body | {"model": "other"}).status_code == 404
    assert server.client.post("/v1/embeddings", json={"model": "some", "input": "x"}).status_code == 404


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"r": None}, "rank"),
    ],
)
def test_adapters_that_do_not_run_are_refused(tiny: Path, tmp_path: Path, config: dict[str, Any], said: str) -> None:
    folder = make_adapter(tmp_path / "a", 3, ("q_proj",), **config)
    with pytest.raises(UsageError, match=said):
        LLM(str(tiny), "plain", dtype="fp32", lora={"a": str(folder)})


def test_names_and_executors_that_are_refused(tiny: Path, tmp_path: Path, adapters: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="adapter_config"):
        LLM(str(tiny), "plain", dtype="fp32", lora={"a": str(tmp_path)})
    llm = LLM(str(tiny), "plain", dtype="fp32", lora=adapters)
    with pytest.raises(UsageError, match="adapter"):
        list(llm.events([llm.request(PROMPT, PARAMS, lora="other")]))
    for kind in (NativeExecutor, HFExecutor):
        executor: Any = kind.__new__(kind)  # what it would load is not needed to be refused
        executor.name = kind.__name__
        with pytest.raises(UsageError, match=f"executor {kind.__name__} runs no LoRA adapters"):
            executor.add_adapter("a", {})
    assert run(["serve", str(tiny), "--lora", "nameless"]) == 2
