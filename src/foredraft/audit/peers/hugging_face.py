"""transformers' `generate` under audit: plain, with prompt lookup, or assisted by another model.

The distribution is that of one plain pass of the same weights. Nothing of our own decoding is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ForedraftError, UsageError
from ...recipes.loading import DTYPES
from ..sequential.cells import CellDistribution, Text, cells_of_dense
from ..subject import CELLS, Activity

_ROWS = 32  # texts of one length that are read in one pass


class TransformersSubject:
    """A causal model of transformers, and how its `generate` shall speculate."""

    def __init__(self, name: str, model: Any, how: dict[str, Any], temperature: float = 1.0) -> None:
        if temperature <= 0:
            raise UsageError("an audit of sampling needs a temperature above 0")
        self.name, self.model, self.how, self.temperature = name, model, how, temperature
        self.version = f"transformers {metadata.version('transformers')}"
        self.activity: Activity | None = None  # generate does not tell
        self.device = next(model.parameters()).device

    @torch.inference_mode()
    def sample(self, prompt: Text, count: int, tokens: int, seed: int) -> list[Text]:
        """One call of `generate` per text: speculation there knows batches of one only."""
        found = []
        for i in range(count):
            torch.manual_seed(seed + i)
            found.append(self.write(prompt, tokens, do_sample=True, temperature=self.temperature, top_k=0, top_p=1.0))
        return found

    def greedy(self, prompts: Sequence[Text], tokens: int, speculate: bool) -> list[Text]:
        """Greedy decoding, as it is configured or plain."""
        with torch.inference_mode():
            return [self.write(prompt, tokens, plain=not speculate, do_sample=False) for prompt in prompts]

    def write(self, prompt: Text, tokens: int, *, plain: bool = False, **options: Any) -> Text:
        ids = torch.tensor([list(map(int, prompt))], device=self.device)
        how = {} if plain else self.how
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=0,
            **options,
            **how,
        )
        return tuple(out[0, len(prompt) :].tolist())

    def distributions(self, prompt: Text, prefixes: Sequence[Text]) -> list[CellDistribution]:
        found: dict[Text, CellDistribution] = {}
        by_length: dict[int, list[Text]] = defaultdict(list)
        for prefix in prefixes:
            by_length[len(prefix)].append(prefix)
        for same in by_length.values():
            for begin in range(0, len(same), _ROWS):
                part = same[begin : begin + _ROWS]
                rows = torch.softmax(self.logits([(*prompt, *prefix) for prefix in part]) / self.temperature, dim=1)
                found |= {prefix: cells_of_dense(row.numpy(), CELLS) for prefix, row in zip(part, rows, strict=True)}
        return [found[prefix] for prefix in prefixes]

    @torch.inference_mode()
    def logits(self, texts: Sequence[Text]) -> Tensor:
        """[texts, V] float64 logits after texts of one length."""
        ids = torch.tensor([list(map(int, text)) for text in texts], device=self.device)
        return self.model(ids, logits_to_keep=1).logits[:, -1].double().cpu()


def _reader(dtype: torch.dtype) -> Callable[..., Any]:
    """What reads model folders, quietly; raises where transformers is not installed."""
    try:
        transformers: Any = import_module("transformers")
    except ImportError:
        raise ForedraftError("transformers is not installed; pip install 'foredraft[hf]'") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def read(path: Path | str, **changed: Any) -> Any:
        found = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True, **changed)
        return found.eval()

    return read


def load(folder: Path, assistant: str, temperature: float, dtype: str = "fp32") -> TransformersSubject:
    """A model folder with `assistant`: none, lookup:N, layers:K (the model's own first layers) or another folder."""
    read = _reader(DTYPES[dtype])
    model = read(folder)
    model.generation_config.eos_token_id = None
    word, _, value = assistant.partition(":")
    if word in ("lookup", "layers") and not value.isdigit():
        raise UsageError(f"--assistant {assistant!r} is not {word}:N with a number N")
    how: dict[str, Any] = {}
    if word == "lookup":
        how = {"prompt_lookup_num_tokens": int(value)}
    elif word == "layers":
        how = {"assistant_model": read(folder, num_hidden_layers=int(value))}
    elif assistant != "none":
        how = {"assistant_model": read(assistant)}
    if "assistant_model" in how:
        how["assistant_model"].generation_config.eos_token_id = None
    return TransformersSubject(f"transformers generate, assistant {assistant}", model, how, temperature)
