"""`foredraft complete`: several continuations of a text at the price of one, to choose from as you type."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ...recipes import LLM
from ...types import SamplingParams
from .. import options as o


def complete(
    text: Annotated[str, typer.Argument(help="What was typed so far.")],
    k: Annotated[int, typer.Option("--k", "-k", help="Continuations.", min=1, max=16)] = 5,
    length: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Tokens of each.", min=1)] = 12,
    model: o.Model = o.DEFAULT_MODEL,
    store: o.Store = None,
    compare: Annotated[bool, typer.Option("--compare", help="Also time k separate samples, one at a time.")] = False,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Suggest k continuations of a text by one pass a token (superposed decoding: suggestions, not samples)."""
    with o.LoadingBar() as bar:
        llm = LLM(model, "plain", dtype=dtype, device=device, progress=bar)
    found = llm.complete(text, k, length, store)
    document: dict[str, Any] = asdict(found) | {"k": k, "exact": False, "model": llm.target.name}
    if compare:
        llm.complete(text, k, length, store)  # both sides are measured warm
        found = llm.complete(text, k, length, store)
        document |= {"seconds": found.seconds, "separate": separate(llm, text, k, length)}
    if as_json:
        print(json.dumps(document, ensure_ascii=False))
        return 0
    for choice in found.choices:
        print(f"{choice.score:7.2f}  {choice.text!r}")
    line = f"[{len(found.choices)} continuations, {found.passes} passes, {1e3 * found.seconds:.0f} ms"
    if compare:
        line += f"; {k} separate samples {1e3 * document['separate']:.0f} ms"
    o.errors.print(line + "]", style="dim", highlight=False, markup=False)
    return 0


def separate(llm: LLM, text: str, k: int, length: int) -> float:
    """Seconds of k samples one after another, reading of the prompt not counted."""
    params = [SamplingParams(temperature=0.8, seed=seed, max_new_tokens=length, ignore_eos=True) for seed in range(k)]
    llm.generate(text, params[0])
    began = time.perf_counter()
    results = [llm.generate(text, each)[0] for each in params]
    return time.perf_counter() - began - sum(result.stats.prefill_seconds for result in results)
