"""The executor for every other causal Hugging Face model: runs the model's own code, sequence by sequence, slower.

It hands the model tokens, positions, masks and a growing cache per slot, and refuses to know what happens between the
layers: passes that go layer by layer need one of our own families. transformers is imported on first use only.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
from torch import Tensor

from ...core.trees.layout import ancestor_mask
from ...errors import ForedraftError
from ...models.layers.skip_set import Skip
from ..base import FINAL, Output, OwnMemory, Placement, Rows, WithoutAdapters
from ..kv_cache import check_drafts, check_text

CHUNK = 256  # prompt tokens that go through the model at once
UNKNOWN_LENGTH = 4096  # context of a model whose config does not tell
NEEDED = ("position_ids", "attention_mask", "past_key_values", "inputs_embeds")


@dataclass(slots=True)
class Slot:
    """One sequence: its cache holds the committed rows and the scratch rows after them."""

    cache: Any
    length: int = 0  # committed rows
    parents: list[int] = field(default_factory=list)  # of each scratch row, -1 = committed text
    depths: list[int] = field(default_factory=list)  # of each scratch row


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Committed K/V of one slot, copied: one pair per layer, None where a layer keeps nothing."""

    length: int
    layers: list[tuple[Tensor, Tensor] | None]


class HFExecutor(WithoutAdapters, OwnMemory):
    """A Hugging Face model with one cache per slot."""

    pads_rows = False
    decoder = capturing = compiled = None  # transformers runs the model: nothing of it can be taken apart

    def __init__(
        self, model: Any, max_slots: int = 1, max_length: int | None = None, max_scratch: int = 96, label: str = ""
    ) -> None:
        self.model = model.eval()  # passes run without gradients, so parameters may keep theirs
        config = model.config.get_text_config(decoder=True)
        self.label = label or str(config.model_type)  # what errors call the model
        self._refuse(why_not(model))
        self.device, self.dtype = model.device, model.dtype
        self.name = f"hf-{config.model_type}-{self.device.type}-{str(self.dtype).removeprefix('torch.')}"
        self.vocab_size, self.hidden_size = int(config.vocab_size), int(config.hidden_size)
        self.num_layers = int(config.num_hidden_layers)
        self.context = context_length(config)  # positions that the model knows
        self.max_length = min(max_length or self.context, self.context)
        self.max_slots, self.max_scratch = max_slots, max(max_scratch, CHUNK)
        self.windows = attention_windows(config)
        self.slots = [Slot(new_cache()) for _ in range(max_slots)]
        self._lock = threading.Lock()  # one pass at a time: it hooks into the model's head

    @classmethod
    def from_folder(
        cls,
        folder: Path | str,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        slots: int = 1,
        max_length: int | None = None,
        **placed: Any,
    ) -> Self:
        """Load a model folder; refuses, in one line, a model whose own code cannot take trees.

        placed: how from_pretrained spreads it over several devices, in place of `device`.
        """
        label = Path(folder).name
        # Eager attention: every architecture has it, and it adds our masks as they are, also where a model caps
        # its attention scores or has sinks.
        load = _transformers().AutoModelForCausalLM.from_pretrained
        try:
            model = load(folder, dtype=dtype, attn_implementation="eager", local_files_only=True, **placed)
            model = (model if placed else model.to(device)).requires_grad_(False)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise ForedraftError(f"transformers cannot load {label}: {_first_line(error)}") from None
        executor = cls(model, slots, max_length, label=label)
        executor.prove()
        return executor

    # --- running ----------------------------------------------------------------------------------------------------

    @property
    def captures(self) -> int:
        return 0

    def length(self, slot: int) -> int:
        return self.slots[slot].length

    def prefill(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], taps: Collection[int] = ()
    ) -> list[dict[int, Tensor]]:
        self._check_growth(slots, [len(prompt) for prompt in tokens])
        self.rollback(slots, [self.length(slot) for slot in slots])
        return [self._read(slot, list(prompt), taps) for slot, prompt in zip(slots, tokens, strict=True)]

    def _read(self, slot: int, prompt: list[int], taps: Collection[int]) -> dict[int, Tensor]:
        parts: dict[int, list[Tensor]] = {tap: [] for tap in taps}
        for begin in range(0, len(prompt), CHUNK):
            run = prompt[begin : begin + CHUNK]
            out = self.forward(Rows.chains([slot], [run], self.device), taps, logits=False)
            self.commit([slot], [len(run)])
            for tap in taps:
                parts[tap].append(out.hidden[tap])
        none = torch.empty((0, self.hidden_size), dtype=self.dtype, device=self.device)
        return {tap: torch.cat(seen) if seen else none for tap, seen in parts.items()}

    def forward(self, rows: Rows, taps: Collection[int] = (), logits: bool = True) -> Output:
        return self._run(rows, rows.token, taps, logits)

    def forward_embeds(self, rows: Rows, embeds: Tensor, taps: Collection[int] = (), logits: bool = True) -> Output:
        return self._run(rows, embeds, taps, logits)

    def resume(
        self, rows: Rows, streams: Tensor, layer: int, taps: Collection[int] = (), logits: bool = True
    ) -> Output:
        """Layers are not reached apart here: the pass starts again."""
        return self.forward(rows, taps, logits)

    @torch.no_grad()
    def _run(self, rows: Rows, inputs: Tensor, taps: Collection[int], logits: bool) -> Output:
        layers = [tap for tap in taps if tap != FINAL]
        if any(not 0 <= tap < self.num_layers for tap in layers):
            self._no_layers()
        for slot, count in zip(rows.slots, rows.counts, strict=True):
            check_drafts(slot, len(self.slots[slot].parents) + count, self.max_scratch)
        scores, hidden = [], []
        with self._lock:
            for slot, parents, depths, part in _by_slot(rows, inputs, self.slots):
                row_scores, row_hidden = self._pass(self.slots[slot], parents, depths, part, layers, logits)
                scores.append(row_scores)
                hidden.append(row_hidden)
        states = {tap: torch.cat([part[tap] for part in hidden]) for tap in (*layers, FINAL)}
        return Output(torch.cat(scores)[: len(rows.token) if logits else 0], states, rows.index())

    def _pass(
        self, slot: Slot, parents: list[int], depths: list[int], part: Tensor, layers: list[int], logits: bool
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """New rows of one sequence through the model: logits (a single row if not wanted) and states."""
        count = len(parents)
        slot.parents += parents
        slot.depths += depths
        with _listening(self.model.get_output_embeddings(), 0 if logits else 1) as heard:
            out = self.model(
                **{"inputs_embeds" if part.is_floating_point() else "input_ids": part[None]},
                attention_mask=self._masks(slot, count),
                position_ids=self._positions(slot)[None, -count:],
                past_key_values=slot.cache,
                use_cache=True,
                output_hidden_states=bool(layers),
                return_dict=True,
            )
        if not heard:
            self._refuse("its LM head is out of reach")
        hidden = {tap: out.hidden_states[tap][0].to(self.device) for tap in layers}
        hidden[FINAL] = heard[-1][0].to(self.device)
        return out.logits[0].to(self.device), hidden

    def _positions(self, slot: Slot) -> Tensor:
        """[rows] positions of all rows of a slot. Rows that overhang the context share its last position."""
        scratch = torch.tensor(slot.depths) + slot.length
        return torch.cat((torch.arange(slot.length), scratch)).clamp(max=self.context - 1).to(self.device)

    def _masks(self, slot: Slot, count: int) -> Tensor | dict[str, Tensor]:
        """[1, 1, count, rows] additive; one for each kind of layer where the model has several."""
        seen = torch.ones((count, slot.length + len(slot.parents)), dtype=torch.bool)
        seen[:, slot.length :] = ancestor_mask(torch.tensor([slot.parents]))[0, -count:]
        seen = seen.to(self.device)
        position = self._positions(slot)
        masks = {}
        for kind, window in self.windows.items():
            near = position[None, :] > position[-count:, None] - window if window else seen
            masks[kind] = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
            masks[kind].masked_fill_(~(seen & near), -torch.inf)
            masks[kind] = masks[kind][None, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))

    # --- layer by layer: not here -------------------------------------------------------------------------------------

    def embed(self, token: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model.get_input_embeddings()(token)

    def place(self, rows: Rows) -> Placement:
        self._no_layers()

    def forward_layers(
        self, placement: Placement, hidden: Tensor, layers: range, taps: Collection[int] = (), skip: Skip = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        self._no_layers()

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        self._no_layers()

    def _no_layers(self) -> NoReturn:
        raise ForedraftError(
            f"{self.label} ({self.model.config.model_type}) runs through transformers; passes that go layer by layer"
            " need a built-in family"
        )

    # --- keeping and forgetting ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def commit(self, slots: Sequence[int], counts: Sequence[int], keep: Tensor | None = None) -> None:
        self._check_growth(slots, counts)
        for b, (slot, count) in enumerate(zip(slots, counts, strict=True)):
            self._keep(self.slots[slot], count, None if keep is None else keep[b, :count])

    def _keep(self, slot: Slot, count: int, rows: Tensor | None) -> None:
        base = slot.length
        if rows is not None and count:
            for layer in _filled(slot.cache):
                which = (rows + base).to(layer.keys.device)
                layer.keys = torch.cat((layer.keys[..., :base, :], layer.keys.index_select(-2, which)), dim=-2)
                moved = layer.values.index_select(-2, which)
                layer.values = torch.cat((layer.values[..., :base, :], moved), dim=-2)
        self._crop(slot, base + count)

    def rollback(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        for slot, length in zip(slots, lengths, strict=True):
            if not 0 <= length <= self.length(slot):
                raise ValueError(f"slot {slot} holds {self.length(slot)} tokens and cannot be cut to {length}")
            self._crop(self.slots[slot], length)

    def _crop(self, slot: Slot, length: int) -> None:
        if length == 0:
            slot.cache = new_cache()
        for layer in _filled(slot.cache):
            layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]
        slot.length, slot.parents, slot.depths = length, [], []

    def snapshot(self, slot: int) -> Snapshot:
        held, n = self.slots[slot], self.length(slot)
        layers = held.cache.layers if n else []
        return Snapshot(
            n, [(x.keys[..., :n, :].clone(), x.values[..., :n, :].clone()) if _full(x) else None for x in layers]
        )

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        cache = new_cache()
        for index, pair in enumerate(snapshot.layers):
            if pair is not None:
                cache.update(pair[0], pair[1], index)
        self.slots[slot] = Slot(cache, snapshot.length)

    # --- refusing ---------------------------------------------------------------------------------------------------

    def _check_growth(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        for slot, count in zip(slots, counts, strict=True):
            check_text(slot, self.length(slot) + count, self.max_length)

    def _refuse(self, reason: str | None) -> None:
        if reason is not None:
            raise ForedraftError(f"{self.label} ({self.model.config.model_type}) cannot verify drafts: {reason}")

    def prove(self) -> None:
        """Refuse a model whose code chokes on our masks or ignores them: a row must not see its sibling."""
        states = []
        for other in (1, 3):
            token = torch.tensor([0, other, 2], device=self.device)
            depth, parent = torch.tensor([0, 1, 1], device=self.device), torch.tensor([-1, 0, 0], device=self.device)
            try:
                out = self.forward(Rows((0,), (3,), token, depth, parent))
            except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
                self._refuse(f"its code does not take tree masks: {_first_line(error)}")
            states.append(out.hidden[FINAL][2].float())
            self.rollback([0], [0])
        apart = (states[0] - states[1]).abs().max() / states[0].abs().max()
        if not apart < 0.02:  # equal but for the rounding of expert layers that regroup their rows
            self._refuse("its code ignores tree masks; load it with attn_implementation='eager'")


def why_not(model: Any) -> str | None:
    """Why trees cannot go through this model's own code; None = nothing speaks against it."""
    config = model.config.get_text_config(decoder=True)
    taken = inspect.signature(model.forward).parameters
    missing = [name for name in NEEDED if name not in taken]
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    checks = (
        (not missing, f"its forward takes no {', '.join(missing)}"),
        (not kinds, f"layers of type {', '.join(sorted(kinds))} cannot hold trees"),
        (not getattr(config, "alibi", False), "its positions come from the order of the rows (ALiBi)"),
        ("local" not in (getattr(config, "attention_layers", None) or ()), "it has its own idea of local attention"),
        (model.get_output_embeddings() is not None, "it has no LM head"),
    )
    return next((reason for ok, reason in checks if not ok), None)


def attention_windows(config: Any) -> dict[str, int | None]:
    """Kind of layer -> how many positions back it sees, itself included; None = all."""
    window = getattr(config, "sliding_window", None) or None
    plain = "sliding_attention" if window else "full_attention"
    kinds = getattr(config, "layer_types", None) or [plain]
    return {kind: window if kind == "sliding_attention" else None for kind in kinds}


def context_length(config: Any) -> int:
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
    found = (getattr(config, name, None) for name in names)
    known = next((int(value) for value in found if value), UNKNOWN_LENGTH)
    return min([known, *_first_angles(config)])


def _first_angles(config: Any) -> list[int]:
    """Where LongRoPE goes over to other angles: keys that were read before have the old ones, and a draft that reaches
    beyond would turn all rows of its pass by the new ones. So texts end there."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, dict))]  # some models: by kind of layer
    return [int(kind["original_max_position_embeddings"]) for kind in kinds if kind.get("rope_type") == "longrope"]


def new_cache() -> Any:
    """A cache whose layers all keep everything: without a config, transformers knows of no sliding window."""
    return _transformers().DynamicCache()


def _by_slot(rows: Rows, inputs: Tensor, slots: list[Slot]) -> Iterator[tuple[int, list[int], list[int], Tensor]]:
    """(slot, parents, depths, inputs) of the new rows, sequence after sequence."""
    depths = rows.depth.tolist()
    parents = None if rows.parent is None else rows.parent.tolist()
    start = 0
    for slot, count in zip(rows.slots, rows.counts, strict=True):
        end, before = start + count, len(slots[slot].parents)
        above = list(range(before - 1, before + count - 1)) if parents is None else parents[start:end]
        yield slot, above, depths[start:end], inputs[start:end]
        start = end


@contextmanager
def _listening(head: Any, rows: int) -> Iterator[list[Tensor]]:
    """Collect the features that an LM head reads; `rows` > 0: leave it only so many of them to work on."""
    heard: list[Tensor] = []

    def hook(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        heard.append(args[0])
        return (args[0][:, :rows], *args[1:]) if rows else args

    handle = head.register_forward_pre_hook(hook)
    try:
        yield heard
    finally:
        handle.remove()


def _filled(cache: Any) -> list[Any]:
    return [layer for layer in cache.layers if _full(layer)]


def _full(layer: Any) -> bool:
    return layer.keys is not None and layer.keys.dim() > 1


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ForedraftError(
            "this model is not of a built-in family and needs transformers; pip install foredraft[hf]"
        ) from None
    return transformers
