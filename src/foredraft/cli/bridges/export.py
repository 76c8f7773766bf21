"""`foredraft export`: a trained head for vLLM, SGLang, llama.cpp or transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ...models import DEFAULT
from .. import options as o

Head = Annotated[
    str, typer.Argument(help="Folder of a trained head, the kind of a shipped one, or 'target': the model itself.")
]
Engine = Annotated[str, typer.Option("--to", help="vllm, sglang, llama.cpp or transformers.")]
Out = Annotated[Path, typer.Option(help="Folder to write; it must not exist yet.")]
Schema = Annotated[str, typer.Option(help="vllm: plain, or speculators (vllm serve FOLDER alone).")]
Storage = Annotated[str, typer.Option(help="llama.cpp: q8_0, f16 or f32.")]
TargetGguf = Annotated[Path | None, typer.Option(help="llama.cpp: the target's GGUF file (default: where it is from).")]
Check = Annotated[
    str | None, typer.Option(help="A Python with the engine: run the head there and here over ten prompts.")
]
Dtype = Annotated[str, typer.Option(help="Precision of the weights: bf16, fp16 or fp32.")]


def export(
    head: Head,
    to: Engine,
    out: Out,
    model: o.Model = DEFAULT,
    schema: Schema = "plain",
    dtype: Dtype = "bf16",
    storage: Storage = "q8_0",
    target_gguf: TargetGguf = None,
    check: Check = None,
) -> None:
    """Write a trained head as another engine reads it, with the command to serve it (USE.md)."""
    from ...integrations.export.exporter import ExportOrder, export_head

    order = ExportOrder(head, to, out, model, schema, dtype, storage, target_gguf)
    for path in export_head(order):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    if check is not None:
        from ...integrations.load_back.head_check import check_export

        print(json.dumps(check_export(order, check)))
