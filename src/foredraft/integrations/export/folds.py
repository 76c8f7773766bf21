"""A trained head's tensors under the names and in the units of other engines.

What our heads keep apart is multiplied into matrices that the others have: scales of target states into `fc`, the
square product before the output rows into `lm_head`, EAGLE's scale into its layer. Nothing is lost but rounding.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ...errors import UsageError
from ...models.decoder import Decoder
from ...models.elsewhere import plain_rows
from ...models.heads import Eagle3Head, EagleHead
from ...models.heads.eagle import Eagle3Layer
from ...models.load.weight_names import slots

Tensors = dict[str, Tensor]


@torch.no_grad()
def eagle3_tensors(head: Eagle3Head, vocab_size: int) -> Tensors:
    """SafeAILab's names, as vLLM, SGLang and llama.cpp's converter read them. vocab_size: of the target."""
    if len(head.layers) != 1 or head.layers[0].q_norm is not None:
        raise UsageError("engines read EAGLE-3 heads of one layer without norms of q and k, and this one has others")
    d, scales = head.config.hidden_size, head.scales
    layer = cast(Eagle3Layer, head.layers[0])
    given = _with_output_bias(layer_tensors(head), d)
    named = {name.replace("layers.0.", "midlayer."): value for name, value in given.items()}
    named["midlayer.hidden_norm.weight"] = named.pop("midlayer.input_layernorm.weight")
    named["midlayer.input_layernorm.weight"] = _plain(layer.token_norm)
    fc = _plain(head.fc.weight)
    for tap, scale in enumerate(scales):
        fc[:, tap * d : (tap + 1) * d] /= scale
    ids = head.ids.cpu()
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[ids] = True
    return named | {
        "fc.weight": fc,
        "norm.weight": _plain(head.norm),
        "lm_head.weight": _plain(plain_rows(head.head)) @ _plain(head.turn.weight),
        "d2t": ids - torch.arange(len(ids)),
        "t2d": known,
    }


@torch.no_grad()
def eagle_tensors(head: EagleHead, bias: bool) -> Tensors:
    """EAGLE's names. The stream s * x takes the place of x, so that the target's head reads it as it is.

    bias: whether the engine's `fc` has one; else the embedding carries it: fc_e (e + fc_e^-1 b) = fc_e e + b.
    """
    if len(head.layers) != 1 or head.layers[0].q_norm is not None:
        raise UsageError("engines read EAGLE heads of one layer without norms of q and k, and this one has others")
    d, s = head.config.hidden_size, head.scale
    named = _with_output_bias(layer_tensors(head), d)
    for letter in "qkv":
        named[f"layers.0.self_attn.{letter}_proj.weight"] /= s
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        named[f"layers.0.{name}.weight"] *= s
    fc = _plain(head.fc.weight)
    fc[:, :d] *= s
    embedding, shift = _plain(head.embedding), _plain(cast(Tensor, head.fc.bias)) * s
    if bias:
        return named | {"fc.weight": fc, "fc.bias": shift, "embed_tokens.weight": embedding}
    carried = torch.linalg.solve(fc[:, :d].double(), shift.double())
    return named | {"fc.weight": fc, "embed_tokens.weight": (embedding.double() + carried).float()}


@torch.no_grad()
def language_tensors(head: Decoder, target: Decoder) -> Tensors:
    """An ordinary model with the target's embedding and output rows; with the target's own layers it is the target."""
    named = {f"model.{name}": value for name, value in layer_tensors(head).items()}
    named |= {"model.embed_tokens.weight": _plain(target.embedding), "model.norm.weight": _plain(head.norm)}
    if not target.config.tied_head:
        named["lm_head.weight"] = _plain(plain_rows(target.head))
    return named


def layer_tensors(head: Decoder) -> Tensors:
    """The layers of a head under Hugging Face's names, merged products apart again; what a layer lacks is left out."""
    own = dict(head.named_parameters(remove_duplicate=False))
    found = {}
    for name, slot in slots(head.config).items():
        if name.startswith("model.layers.") and slot.parameter in own:
            found[name.removeprefix("model.")] = _plain(own[slot.parameter][slot.start : slot.stop])
    return found


def _with_output_bias(named: Tensors, width: int) -> Tensors:
    """Engines whose layers are Llama's have a bias of the attention's output too wherever q, k and v have theirs."""
    for name in [name for name in named if name.endswith("q_proj.bias")]:
        named[name.replace("q_proj.bias", "o_proj.bias")] = torch.zeros(width)
    return named


def _plain(value: Tensor) -> Tensor:
    return value.detach().to("cpu", torch.float32).clone().contiguous()
