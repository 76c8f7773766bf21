"""`foredraft audit`: does speculation leave the model's distribution alone? Exit 0 PASS, 3 FAIL, 4 UNDECIDED.

`--json` prints one JSON document and nothing else; `--out` writes it with a Markdown twin for a bug ticket.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import UsageError
from ..types import SamplingParams
from . import options as o

if TYPE_CHECKING:
    from ..audit.trial import Plan
    from ..audit.trial import Progress as Told

Method = Annotated[str | None, typer.Option(help="Audit a method of ours; see 'foredraft methods'.")]
Mutation = Annotated[str | None, typer.Option(help="Audit a seeded wrong rule: B1..B9 or openvino. Must fail.")]
Endpoint = Annotated[str | None, typer.Option(help="Audit an OpenAI-compatible server, such as http://host:8000/v1.")]
Reference = Annotated[str | None, typer.Option(help="Compare --endpoint with this server instead of its own logprobs.")]
ApiKey = Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key of the endpoint.", show_default=False)]
Peer = Annotated[str | None, typer.Option(help="Audit another engine in this process: transformers or vllm.")]
Assistant = Annotated[str, typer.Option(help="How the peer drafts: lookup:N, layers:K, ngram:N, none, or a model folder.")]
Prompts = Annotated[Path | None, typer.Option(help="One prompt per line (default: four built-in ones).")]
Tokens = Annotated[int, typer.Option(help="Tokens of every sampled text.")]
Resolution = Annotated[float, typer.Option(help="Bias in total variation that a PASS rules out.")]
Alpha = Annotated[float, typer.Option(help="False-alarm rate of the whole test.")]
Texts = Annotated[int, typer.Option(help="Most texts, or requests to an endpoint.")]
Seconds = Annotated[float, typer.Option(help="Most time for sampling.")]
BatchSize = Annotated[int, typer.Option(help="Texts that are written at a time.")]
GreedyTokens = Annotated[int, typer.Option(help="Tokens of the greedy identity check.")]
Exact = Annotated[bool, typer.Option("--exact/--no-exact", help="Enumerate the method on table models first.")]
Seed = Annotated[int, typer.Option(help="Seed of all sampling.")]
Out = Annotated[Path | None, typer.Option(help="Folder for audit.json and audit.md.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def audit(
    method: Method = None,
    mutation: Mutation = None,
    endpoint: Endpoint = None,
    reference: Reference = None,
    peer: Peer = None,
    assistant: Assistant = "lookup:5",
    api_key: ApiKey = None,
    model: o.Model = o.DEFAULT_MODEL,
    shape: o.Shape = None,
    rule: o.Rule = None,
    drafter: o.Drafter = None,
    draft_length: o.DraftLength = None,
    temperature: o.Temperature = 1.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    prompts: Prompts = None,
    tokens: Tokens = 3,
    resolution: Resolution = 0.1,
    alpha: Alpha = 1e-3,
    texts: Texts = 20_000,
    seconds: Seconds = 900.0,
    batch_size: BatchSize = 16,
    greedy_tokens: GreedyTokens = 24,
    exact: Exact = True,
    dtype: o.Dtype = "fp32",
    device: o.Device = "auto",
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> int:
    """Test whether texts written with speculation follow the model's own distribution."""
    from ..audit.prompts import read_prompts
    from ..audit.trial import Plan
    from ..recipes import Options

    given = {k: v for k, v in zip(KINDS, (method, mutation, endpoint, peer), strict=True) if v is not None}
    if len(given) != 1:
        raise UsageError("say what to audit with one of --method, --mutation, --endpoint or --peer")
    if reference is not None and endpoint is None:
        raise UsageError("--reference goes with --endpoint")
    kind, what = next(iter(given.items()))
    plan = Plan(((),), tokens, alpha, resolution, texts, seconds, batch_size, seed)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    job = Job(what, model, read_prompts(prompts), plan, params, greedy_tokens, dtype, device, exact, assistant)
    job.options, job.reference, job.api_key = Options(shape, rule, drafter, draft_length), reference, api_key
    with progress_bar(f"audit {what}") as progress:
        document = RUNS[kind](job, progress)
    return show(document, out, as_json)
