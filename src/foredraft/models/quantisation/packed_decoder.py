"""A decoder of quantised matrices: its products stay as they are stored, or become plain numbers.

Sources hand over the matrices of a folder or a file by their Hugging Face names, one at a time; embedding, norms and
biases are plain numbers always. `rounding` puts plain matrices into fewer bits as they come: no more than one of them
is ever held.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from ...errors import ForedraftError
from ..config import ModelConfig, read_config
from ..decoder import Decoder, Device, replace_products
from ..layers.gemv_stream import StreamedLinear, can_stream
from ..layers.int8_linear import DTYPES, EightBitLinear, decoder_of, eight_bit_decoder
from ..layers.linear import Linear
from ..layers.rope import rotation_table
from ..load.folders import Progress, silent
from ..load.tensorfile import TensorFile
from ..load.weight_names import Slot, ignorable, slots
from ..load.weights import weight_files
from .grouped_linear import GroupedLinear
from .grouped_matrix import GroupedMatrix
from .published import OF_ACTIVATIONS, PARTS, READERS
from .schemes import Scheme, scheme_of

Matrix = GroupedMatrix | Tensor
ROUNDINGS: dict[str, Callable[[Linear], nn.Module]] = {
    "int8": lambda linear: EightBitLinear.of(linear, DTYPES["int8"]),
    "fp8": lambda linear: EightBitLinear.of(linear, DTYPES["fp8"]),
    "int4": GroupedLinear.rounded,
}


class Source(Protocol):
    """Where tensors come from, by their Hugging Face names."""

    def matrix(self, name: str) -> Matrix:
        """A matrix as it is stored, on the decoder's device."""

    def plain(self, name: str) -> Tensor:
        """Any tensor as plain numbers."""

    def close(self) -> None:
        """Nothing more is wanted."""


class FolderSource:
    """A Hugging Face folder, quantised or not."""

    def __init__(self, folder: Path, config: ModelConfig, device: Device) -> None:
        raw = read_config(folder).get("quantization_config")
        scheme = scheme_of(raw) if raw else None
        if isinstance(scheme, str):
            raise ForedraftError(f"{folder}: {scheme}")
        self.folder, self.scheme, self.device = folder, scheme, device
        self.files = [TensorFile(path) for path in weight_files(folder)]
        self.where = {name: file for file in self.files for name in file.entries}
        try:
            self._check(config)
        except BaseException:
            self.close()
            raise

    def _check(self, config: ModelConfig) -> None:
        """Every tensor must be known: a part of a matrix that the model has, or nothing that it needs."""
        wanted = slots(config)
        known = {"", *(part for parts in PARTS.values() for names in parts for part in names), *OF_ACTIVATIONS}
        stems = {name.removesuffix(".weight") for name in wanted}
        for name in self.where:
            stem = next((s for s in _stems(name) if s in stems), None)
            rest = name.removeprefix(f"{stem}.")
            if name in wanted or ignorable(name, config) or (stem is not None and rest in known):
                continue
            if rest == "bias" and stem is not None and not self.plain(name).any():
                continue  # some programs write biases of zeros
            if rest in OF_ACTIVATIONS or name.rpartition(".")[2] in OF_ACTIVATIONS:
                continue
            raise ForedraftError(f"{self.folder}: tensor {name} is unknown; config.json tells another model")

    def matrix(self, name: str) -> Matrix:
        stem = name.removesuffix(".weight")
        own = self._parts(stem, self.scheme) if self.scheme is not None else None
        if own is None or self.scheme is None:
            return self.plain(name)
        try:
            return READERS[self.scheme.reader](own, self.scheme)
        except (RuntimeError, ValueError, KeyError, IndexError) as error:
            raise ForedraftError(f"{self.folder}: the tensors of {stem} do not fit together ({error})") from None

    def _parts(self, stem: str, scheme: Scheme) -> dict[str, Tensor] | None:
        """The tensors that make up a quantised matrix; None where it is stored as plain numbers."""
        there = [[part for part in names if f"{stem}.{part}" in self.where] for names in PARTS[scheme.reader]]
        if not all(found or "" in names for found, names in zip(there, PARTS[scheme.reader], strict=True)):
            return None
        return {found[0]: self._read(f"{stem}.{found[0]}") for found in there if found}

    def plain(self, name: str) -> Tensor:
        if name not in self.where:
            raise ForedraftError(f"{self.folder}: {name} is missing; download it again")
        found = self._read(name)
        if not found.is_floating_point() or found.element_size() == 1:
            raise ForedraftError(f"{self.folder}: {name} is quantised in a way that config.json does not tell")
        return found

    def _read(self, name: str) -> Tensor:
        file = self.where[name]
        entry = file.entries[name]
        found = torch.empty(entry.shape, dtype=entry.dtype)
        file.read_into(name, found)
        return found.to(self.device)

    def close(self) -> None:
        for file in self.files:
            file.__exit__(None, None, None)


def _stems(name: str) -> list[str]:
    """What may be the matrix's name in a tensor's: all that ends before a dot."""
    words = name.split(".")
    return [".".join(words[:count]) for count in range(len(words) - 1, 0, -1)]


def build(
    config: ModelConfig,
    source: Source,
    dtype: torch.dtype,
    device: Device,
    *,
    packed: bool = True,
    rounding: str | None = None,
    progress: Progress = silent,
) -> Decoder:
    """The decoder of a source, which is closed. packed: matrices stay quantised; else everything is plain numbers."""
    try:
        return _built(config, source, dtype, device, packed, rounding, progress)
    finally:
        source.close()


def _built(
    config: ModelConfig,
    source: Source,
    dtype: torch.dtype,
    device: Device,
    packed: bool,
    rounding: str | None,
    progress: Progress,
) -> Decoder:
    decoder = Decoder.empty(config, dtype, "meta", rotation_table(config, dtype, device)).requires_grad_(False)
    wanted: dict[str, list[tuple[Slot, str]]] = {}
    for hf, slot in slots(config).items():
        wanted.setdefault(slot.parameter, []).append((slot, hf))
    biases = {name: parts for name, parts in wanted.items() if name.endswith(".bias")}
    for done, (name, parts) in enumerate(wanted.items()):
        progress("reading weights", done, len(wanted))
        names = [hf for _, hf in sorted(parts, key=lambda part: part[0].start)]
        owner, _, last = name.rpartition(".")
        module = decoder.get_submodule(owner)
        if isinstance(module, Linear) and last == "weight":
            own = biases.get(f"{owner}.bias")
            bias = None if own is None else _plain(source, [hf for _, hf in sorted(own, key=_start)], dtype, device)
            matrices = [source.matrix(hf) for hf in names]
            _check_sizes(names, matrices, module.weight)
            product = _product(matrices, bias, dtype, packed, rounding)
            above, _, mine = owner.rpartition(".")
            setattr(decoder.get_submodule(above), mine, product)
        elif name not in biases:
            setattr(module, last, _frozen(_dense(source, names, dtype, device)))
    progress("reading weights", len(wanted), len(wanted))
    _close_tied(decoder, source, packed, rounding)
    if packed and can_stream(decoder.norm):
        replace_products(decoder.layers, StreamedLinear)
    return decoder


def load_folder(
    folder: Path,
    dtype: torch.dtype,
    device: Device,
    packed: bool = True,
    rounding: str | None = None,
    progress: Progress = silent,
) -> Decoder:
    """The decoder of a Hugging Face folder."""
    config = ModelConfig.from_folder(folder)
    source = FolderSource(folder, config, device)
    return build(config, source, dtype, device, packed=packed, rounding=rounding, progress=progress)


def random_decoder_in(kind: str, config: ModelConfig, dtype: torch.dtype, device: Device) -> Decoder:
    """Random weights of a shape, made as they lie in this many bits (a name of ROUNDINGS)."""
    if kind != "int4":
        return eight_bit_decoder(config, kind, dtype, device)
    return decoder_of(config, lambda i, o: GroupedLinear([GroupedMatrix.random(i, o, device)]), dtype, device)


def head_of(embedding: Tensor, kind: str) -> nn.Module:
    """An embedding as the head too, in few bits."""
    linear = Linear(embedding.shape[1], len(embedding), embedding.dtype, "meta")
    linear.weight = _frozen(embedding.detach())
    return ROUNDINGS[kind](linear)


def _check_sizes(names: list[str], matrices: list[Matrix], wanted: Tensor) -> None:
    sizes = [(m.outputs, m.inputs) if isinstance(m, GroupedMatrix) else tuple(m.shape) for m in matrices]
    if sum(size[0] for size in sizes) != len(wanted) or any(size[1] != wanted.shape[1] for size in sizes):
        raise ForedraftError(
            f"{names[0]} and what belongs to it are {sizes}, not {list(wanted.shape)} as config.json says"
        )


def _product(
    parts: list[Matrix], bias: Tensor | None, dtype: torch.dtype, packed: bool, rounding: str | None
) -> nn.Module:
    """Quantised matrices as they are; any others as plain numbers, rounded if so asked."""
    grouped = [part for part in parts if isinstance(part, GroupedMatrix)]
    if packed and len(grouped) == len(parts):
        return GroupedLinear(grouped, bias)
    plain = [part.dense(dtype) if isinstance(part, GroupedMatrix) else part.to(dtype) for part in parts]
    linear = Linear(plain[0].shape[1], sum(len(part) for part in plain), dtype, "meta", bias is not None)
    linear.weight = _frozen(plain[0] if len(plain) == 1 else torch.cat(plain))
    linear.bias = None if bias is None else _frozen(bias)
    return linear if rounding is None else ROUNDINGS[rounding](linear)


def _close_tied(decoder: Decoder, source: Source, packed: bool, rounding: str | None) -> None:
    """A head that is the embedding too: the table as plain numbers, since rows are looked up there."""
    if not decoder.config.tied_head:
        return
    matrix = source.matrix("model.embed_tokens.weight") if packed else None
    if isinstance(matrix, GroupedMatrix):
        setattr(decoder, "head", GroupedLinear([matrix]))  # noqa: B010, a stand-in
        return
    head = Linear(decoder.config.hidden_size, decoder.config.vocab_size, decoder.dtype, "meta")
    head.weight = decoder.embedding
    setattr(decoder, "head", head if rounding is None else ROUNDINGS[rounding](head))  # noqa: B010


def _dense(source: Source, names: list[str], dtype: torch.dtype, device: Device) -> Tensor:
    """Rows of one parameter, from one matrix or several, as plain numbers."""
    parts = [source.matrix(name) for name in names]
    plain = [part.dense(dtype) if isinstance(part, GroupedMatrix) else part.to(device, dtype) for part in parts]
    return plain[0] if len(plain) == 1 else torch.cat(plain)


def _plain(source: Source, names: list[str], dtype: torch.dtype, device: Device) -> Tensor:
    return torch.cat([source.plain(name).to(device, dtype) for name in names])


def _start(part: tuple[Slot, str]) -> int:
    return part[0].start


def _frozen(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=False)
