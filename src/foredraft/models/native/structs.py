"""The library's own structures; decoder.cpp and product.h say what their fields mean.

They hold addresses only: whoever makes one keeps what it points at.
"""

from __future__ import annotations

import ctypes

from torch import Tensor

_int, _pointer, _float = ctypes.c_int32, ctypes.c_void_p, ctypes.c_float


def _fields(ints: str, pointers: str = "") -> list[tuple[str, type]]:
    return [*((name, _int) for name in ints.split()), *((name, _pointer) for name in pointers.split())]


class Weight(ctypes.Structure):
    _fields_ = _fields("format columns depth own", "codes scales more")


class Options(ctypes.Structure):
    """How a token is drawn: temperature 0 takes the top token, top_k 0 all of them."""

    _fields_ = [("temperature", _float), ("top_p", _float), ("min_p", _float), ("top_k", _int)]


class Layer(ctypes.Structure):
    _fields_ = [
        *_fields("enter has_mlp", "attn_norm token_norm mlp_norm q_norm k_norm qkv_bias"),
        *((name, Weight) for name in ("qkv", "out", "gate_up", "down")),
    ]


class Span(ctypes.Structure):
    _fields_ = _fields("slot begin count length first none", "parent")


class Source(ctypes.Structure):
    _fields_ = [*_fields("", "data row"), ("stride", ctypes.c_int64), ("count", ctypes.c_int64), ("weight", _pointer)]

    @classmethod
    def of(cls, table: Tensor, row: Tensor | None = None) -> Source:
        """Rows of a table [N, d] of bf16, each in one piece: those that `row` [T] names, or all as they lie."""
        return cls.at(table, None if row is None else row.data_ptr())

    @classmethod
    def at(cls, table: Tensor, row: int | None) -> Source:
        """The same with the address of `row`."""
        struct = getattr(table, "struct", None)  # of a table that is quantised
        if struct is not None:
            return cls(None, row, table.stride(0), len(table), ctypes.addressof(struct))
        return cls(table.data_ptr(), row, table.stride(0), len(table))


class Tail(ctypes.Structure):
    _fields_ = [
        *_fields("", "norm words_bias"),
        ("turn", Weight),
        ("words", Weight),
        *_fields("", "features logits row"),
        *_fields("rows top"),
        ("least", _float),
        *_fields("none", "ids values places"),
    ]


class Pass(ctypes.Structure):
    _fields_ = [
        *_fields("rows hidden heads kv_heads dim inner first_layer last_layer slots capacity spans threads"),
        ("eps", _float),
        *_fields("stores_only tiles none", "layers tail"),
        ("stream", Source),
        ("token", Source),
        *_fields("", "output taps position rotations store span"),
    ]


class Correction(ctypes.Structure):
    _fields_ = [
        *_fields("rows hidden inner threads width tiles"),
        ("eps", _float),
        ("scale", _float),
        ("above", Source),
        ("token", Source),
        *_fields("", "norm"),
        ("node", Weight),
        ("down", Weight),
        *_fields("", "share row"),
        ("share_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        *_fields("", "state"),
    ]


class Copying(ctypes.Structure):
    _fields_ = [
        *_fields("rows width hidden pointers top none"),
        ("level", _float),
        ("nothing", _float),
        *_fields("", "features gate scores token index"),
        *((name, ctypes.c_int64) for name in ("text_stride", "pointer_stride", "words")),
        *_fields("", "logits values ids"),
    ]


class BlockRows(ctypes.Structure):
    _fields_ = [
        *_fields("texts size hidden states layers heads dim places matches turns threads"),
        *((name, _float) for name in ("eps", "scale", "asked_scale", "nothing")),
        *_fields("tiles"),
        ("token", Source),
        *_fields("", "state state_scale query passes rows share_norm ask_norm shares"),
        *_fields("", "text end rotations worth scores after"),
        *((name, Weight) for name in ("fuse", "share", "ask")),
    ]


class GreedyChain(ctypes.Structure):
    _fields_ = _fields("length texts", "words correction copying level followed scores tokens")


class ValueTree(ctypes.Structure):
    _fields_ = [
        *_fields("width depth nodes most found pointers points none", "words correction copying level followed scores"),
        *_fields("", "point slope offset verify children"),
        ("first", ctypes.c_double),
        ("further", ctypes.c_double),
        *_fields("", "token parent deep nth source levels value given"),
    ]
