"""`speculate(..)`: a decoding loop for transformers' `generate()` that drafts and verifies with foredraft.

`generate()` prepares prompts, options, processors and criteria and calls the object with them. What it prepared is
honoured, or refused by its name; beam search and other modes of decoding are refused. Texts are generate()'s own: at
temperature 0 the same ids in fp32, else the same distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ...engine import Request
from ...errors import ForedraftError, UsageError
from ...recipes import LLM
from ...recipes.table import DEFAULT_METHOD
from ...types import SamplingParams, Stats
from .processors import ProcessorMasks, read_processors

MODES = ("greedy_search", "sample")
WANTED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
PREPARED = {"attention_mask", "position_ids", "past_key_values", "logits_to_keep", "use_cache", "cache_position"}


def speculate(
    method: str = DEFAULT_METHOD,
    *,
    tokenizer: Any = None,
    streamer: Any = None,
    packed: bool = False,
    batch_size: int = 1,
    max_length: int | None = None,
    **options: Any,
) -> Speculate:
    """What to pass as `custom_generate`; keep it, so that drafters keep what they have learnt.

    `tokenizer`: the model's; None = from the folder that it came from. `streamer`: generate() keeps its own argument
    from custom loops, so it is given here. The others are those of `LLM.from_model`.
    """
    made = {"packed": packed, "batch_size": batch_size, "max_length": max_length} | options
    return Speculate(method, tokenizer, streamer, made)


class Speculate:
    """A decoding loop for `generate()`. `stats` counts what the last call drafted and accepted."""

    def __init__(self, method: str, tokenizer: Any, streamer: Any, options: dict[str, Any]) -> None:
        self.method, self.tokenizer, self.streamer, self.options = method, tokenizer, streamer, options
        self.stats = Stats()
        self._llms: WeakKeyDictionary[Any, tuple[int, LLM]] = WeakKeyDictionary()

    def llm(self, model: Any) -> LLM:
        """The front door to a model; made again where the model was moved or cast."""
        place = model.get_input_embeddings().weight.data_ptr()
        known = self._llms.get(model)
        if known is None or known[0] != place:
            made = LLM.from_model(model, self.tokenizer, self.method, **self.options)
            known = self._llms[model] = (place, made)
        return known[1]

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Sequence[Any] = (),
        stopping_criteria: Sequence[Any] = (),
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Continue every row of input_ids [B, n]; as generate() returns it."""
        config = generation_config or model.generation_config
        check_call(config, model_kwargs, len(input_ids), self.streamer)
        options, masks = read_processors(logits_processor)
        mask = model_kwargs.get("attention_mask")
        starts = first_tokens(input_ids, mask)
        if any(starts) and "repetition_penalty" in options:
            raise UsageError("repetition_penalty in a padded batch would penalise padding; send prompts one by one")
        if len(input_ids) > 1 and any(type(m).__name__.startswith("PrefixConstrained") for m in masks):
            raise UsageError("prefix_allowed_tokens_fn is honoured for one prompt at a time")
        llm, room = self.llm(model), config.max_length - input_ids.shape[1]
        vocab, ends, requests = llm.target.executor.vocab_size, end_tokens(config), []
        for row, start in zip(input_ids, starts, strict=True):
            grammar = ProcessorMasks(masks, row[None], vocab, ends) if masks else None
            params = sampling_params(config.do_sample, options, grammar, room)
            request = llm.request(row[start:].tolist(), params)
            request.stop_ids = frozenset()
            request.stop_check = CriteriaCheck(stopping_criteria, row[None])
            requests.append(request)
        self._run(llm, requests, input_ids)
        return _answer(input_ids, [r.sequence.output for r in requests], config)

    def _run(self, llm: LLM, requests: list[Request], input_ids: Tensor) -> None:
        self.stats = Stats()
        if self.streamer is not None:
            self.streamer.put(input_ids.cpu())
        try:
            for event in llm.events(requests):
                for token in event.token_ids if self.streamer is not None else ():
                    self.streamer.put(torch.tensor([token]))
        finally:
            for request in requests:
                llm.engine.cancel(request)
        if self.streamer is not None:
            self.streamer.end()
        for request in requests:
            if request.error is not None:
                raise ForedraftError(request.error)
            self.stats.add(request.stats)


class CriteriaCheck:
    """Stopping criteria, asked after every token as generate() does; answers how many tokens to keep."""

    def __init__(self, criteria: Sequence[Any], prompt: Tensor) -> None:
        self._criteria, self._prompt, self._seen = list(criteria), prompt, 0

    def __call__(self, output: list[int]) -> int | None:
        whole = torch.tensor([output], dtype=self._prompt.dtype, device=self._prompt.device)
        ids = torch.cat((self._prompt, whole), dim=1)
        width = self._prompt.shape[1]
        for count in range(self._seen + 1, len(output) + 1):
            for criterion in self._criteria:
                if bool(torch.as_tensor(criterion(ids[:, : width + count], None)).all()):
                    return count
        self._seen = len(output)
        return None


def check_call(config: Any, model_kwargs: dict[str, Any], rows: int, streamer: Any) -> None:
    """Refuse what this loop cannot do, by its name."""
    mode = config.get_generation_mode().value
    if mode not in MODES:
        raise UsageError(f"generation mode {mode!r} cannot be speculated on; ask for greedy search or sampling")
    asked = [name for name in WANTED if getattr(config, name, False)]
    if asked:
        raise UsageError(f"{asked[0]} is not available while drafting; call generate() without custom_generate")
    strange = [name for name, value in model_kwargs.items() if name not in PREPARED and value is not None]
    if strange:
        raise UsageError(f"argument {strange[0]} cannot be honoured while drafting; leave it out")
    cache = model_kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        raise UsageError("a past_key_values that holds text cannot be continued; pass the whole text as input_ids")
    if streamer is not None and rows > 1:
        raise UsageError("a streamer follows one prompt at a time")


def end_tokens(config: Any) -> list[int]:
    """Those after which generate() stops."""
    ends = config.eos_token_id
    return [] if ends is None else [int(end) for end in torch.as_tensor(ends).reshape(-1)]


def first_tokens(input_ids: Tensor, mask: Tensor | None) -> list[int]:
    """Where the text of each row begins after its padding."""
    if mask is None:
        return [0] * len(input_ids)
    starts = (mask == 0).sum(dim=1)
    columns = torch.arange(input_ids.shape[1], device=mask.device)
    if not torch.equal(mask != 0, columns >= starts[:, None]) or bool((starts == input_ids.shape[1]).any()):
        raise UsageError("attention_mask must mark padding on the left of every prompt and nothing else")
    return [int(start) for start in starts]


def sampling_params(do_sample: bool, options: dict[str, Any], grammar: Any, room: int) -> SamplingParams:
    """Our options of a call; seeds come from torch's generator, so that torch.manual_seed repeats a text."""
    given = dict(options)
    warmth = float(given.pop("temperature", 1.0)) if do_sample else 0.0
    if not do_sample:
        given = {name: value for name, value in given.items() if name == "repetition_penalty"}
    seed = int(torch.randint(1 << 62, (1,))) if do_sample else 0
    return SamplingParams(temperature=warmth, seed=seed, grammar=grammar, max_new_tokens=max(room, 1), **given)


def _answer(input_ids: Tensor, outputs: list[list[int]], config: Any) -> Any:
    """Prompts with what was written, shorter rows padded; a record where generate() was asked for one."""
    longest = max(len(output) for output in outputs)
    prepared = getattr(config, "_pad_token_tensor", None)
    pad = config.pad_token_id or 0 if prepared is None else int(prepared)
    tail = torch.tensor([[*output, *[pad] * (longest - len(output))] for output in outputs])
    sequences = torch.cat((input_ids, tail.to(input_ids)), dim=1)
    if not config.return_dict_in_generate:
        return sequences
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    return GenerateDecoderOnlyOutput(sequences=cast(Any, sequences))
