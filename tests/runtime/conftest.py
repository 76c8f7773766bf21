"""Every kind of executor, built once per run; the tests that take `rig` hold for each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kit import HF_CASES, LLAMA, QWEN3, Rig, hf_folder, hf_rig, loud_decoder, torch_rig

WAYS = {"": (False, False), " padded": (True, False), " graphs": (True, True)}  # padded, captured passes
TORCH = {
    name + way: (config, *kind) for name, config in (("llama", LLAMA), ("qwen3", QWEN3)) for way, kind in WAYS.items()
}
HF = [f"hf {case}" for case in HF_CASES]


@pytest.fixture(scope="session", params=[*TORCH, *HF])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    name = str(request.param)
    if name in TORCH:
        config, padded, graphs = TORCH[name]
        return torch_rig(loud_decoder(config), padded, graphs)
    return hf_rig(hf_folder(name.removeprefix("hf "), tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_folder("llama", tmp_path_factory.mktemp("llama"))
