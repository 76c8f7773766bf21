"""A judge inside vLLM: its rejection sampler, with the judge in front. Off unless a folder is named.

    FOREDRAFT_VLLM_JUDGE=FOLDER FOREDRAFT_VLLM_RULE=judge:0.6 vllm serve MODEL --enforce-eager --speculative-config ..

vLLM calls `register` in every process of its own (entry point `vllm.general_plugins`), so the judge is wherever its
workers are: tensor-parallel ranks, other nodes, Ray actors. All ranks see the same states and accept the same tokens.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import UsageError
from .version import check_version

FOLDER, RULE, FIX = "FOREDRAFT_VLLM_JUDGE", "FOREDRAFT_VLLM_RULE", "FOREDRAFT_VLLM_FIX"
SECOND_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
RUNNERS = {"vllm.v1.worker.gpu_model_runner": "GPUModelRunner", "vllm.v1.worker.cpu_model_runner": "CPUModelRunner"}
log = logging.getLogger(__name__)


def register() -> None:
    """What vLLM calls when it starts; does nothing where no judge is named and nothing is to be mended."""
    if os.environ.get(FIX) == "1":
        check_version("the fix of sampled drafts")
        mend_expansion(import_module("vllm.v1.sample.rejection_sampler"))
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    check_version("the judge")
    if os.environ.get(SECOND_RUNNER, "0") not in ("", "0"):
        raise UsageError(f"the judge works in vLLM's first model runner; start it without {SECOND_RUNNER}")
    os.environ[SECOND_RUNNER] = "0"
    install(Path(folder).expanduser(), os.environ.get(RULE, "judge"))


def mend_expansion(module: Any) -> None:
    """Parameters of requests for each of their drafted tokens, in torch: vLLM's own on CPUs fills a copy of its output,
    of whole numbers, so that temperatures of sampled requests with drafts are whatever lay in memory."""
    import torch

    def expand_batch_to_tokens(
        x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> Any:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        kept = torch.where(x == replace_from, torch.full_like(x, replace_to), x) if replace_from != replace_to else x
        return torch.repeat_interleave(kept, counts, output_size=num_tokens)

    module.expand_batch_to_tokens = expand_batch_to_tokens


def install(folder: Path, text: str) -> None:
    """Put the judge in front of the sampler of every runner that is made from now on."""
    runners: Any = import_module(next(iter(RUNNERS)))
    if hasattr(runners.RejectionSampler, "judge"):
        return  # vLLM calls plugins more than once in a process
    runners.RejectionSampler = judged_class(runners.RejectionSampler)
    for module, name in RUNNERS.items():
        try:
            runner = getattr(import_module(module), name)
        except ImportError:  # no runner of this machine
            continue
        if "load_model" in vars(runner):
            runner.load_model = _then_attach(runner.load_model, folder, text)


def judged_class(sampler: Any) -> Any:
    """A rejection sampler like vLLM's, before which a judge looks at the rows."""

    class JudgedSampler(sampler):  # type: ignore[misc]
        judge: Any = None  # JudgedRows, once the model is there
        states: Callable[[Any], Any] | None = None

        def forward(self, metadata: Any, draft_probs: Any, logits: Any, *args: Any, **more: Any) -> Any:
            from .judged_rows import Drafted

            if self.judge is None or self.states is None:
                raise RuntimeError(f"{FOLDER} is set, and the judge was not attached to this runner")
            drafted = Drafted(metadata.draft_token_ids, metadata.num_draft_tokens, metadata.target_logits_indices)
            judged = self.judge.judged(logits, self.states(metadata), drafted)
            return super().forward(metadata, draft_probs, judged, *args, **more)

    return JudgedSampler


def _then_attach(load_model: Callable[..., Any], folder: Path, text: str) -> Callable[..., Any]:
    @wraps(load_model)
    def loaded(self: Any, *args: Any, **more: Any) -> Any:
        found = load_model(self, *args, **more)
        attach(self, folder, text)
        return found

    return loaded


def attach(runner: Any, folder: Path, text: str) -> None:
    """Load the judge for a runner's model, and keep the states that it reads."""
    from ...models import Tokenizer
    from ...models.heads import Identity
    from ...models.judges import load_judge
    from ...recipes.loading import eos_ids
    from .judged_rows import JudgedRows

    sampler = getattr(runner, "rejection_sampler", None)
    if sampler is None:
        log.warning("%s is set, but nothing drafts here: the judge has nothing to judge", FOLDER)
        return
    if sampler.judge is not None:
        return
    config = runner.model_config
    model, place = runner.get_model(), Path(config.tokenizer)
    if not (place / "tokenizer.json").is_file():
        raise UsageError(
            f"the judge compares tokenizers, and {place} is no folder with a tokenizer.json; name a folder"
        )
    layers = int(config.hf_text_config.num_hidden_layers)
    sizes = int(config.get_hidden_size()), layers, int(config.get_vocab_size())
    judge = load_judge(folder, Identity(*sizes, Tokenizer.from_folder(place).vocab_hash()))
    sampler.judge = JudgedRows(judge, frozenset(eos_ids(Path(config.model))), text)
    sampler.states = kept_states(model, judge.spec.tap, layers, bool(config.enforce_eager))
    log.warning("judge %s is on (lossy): tokens with a score above %s pass", folder, sampler.judge.terms.threshold)


def kept_states(model: Any, tap: int, layers: int, eager: bool) -> Callable[[Any], Any]:
    """States of the rows that are verified, from the pass that is just over: the last ones, or those of a layer."""
    kept: dict[str, Any] = {}
    if tap < 0:
        compute = model.compute_logits

        def compute_logits(hidden_states: Any, *args: Any, **more: Any) -> Any:
            kept["rows"] = hidden_states
            return compute(hidden_states, *args, **more)

        model.compute_logits = compute_logits
        return lambda metadata: kept["rows"]
    if not eager:
        raise UsageError(f"this judge reads layer {tap}, which compiled passes hide; start vLLM with --enforce-eager")
    inner = model.model
    module = inner.norm if tap == layers else inner.layers[tap]
    if type(module).__name__ == "PPMissingLayer":
        raise UsageError(f"layer {tap} is on another pipeline stage than the sampler; use a judge of the last state")
    names = tuple(inspect.signature(module.forward).parameters)
    stream = "hidden_states" if "hidden_states" in names else names[0]

    def keep(module: Any, args: tuple[Any, ...], more: dict[str, Any]) -> None:
        given = dict(zip(names, args, strict=False)) | more
        residual = given.get("residual")
        kept["all"] = given[stream] if residual is None else given[stream] + residual

    module.register_forward_pre_hook(keep, with_kwargs=True)
    return lambda metadata: kept["all"][metadata.logits_indices]
