"""`foredraft audit`: does speculation leave the model's distribution alone? Exit 0 PASS, 3 FAIL, 4 UNDECIDED.

`--json` prints one JSON document and nothing else; `--out` writes it and the same as Markdown, for a bug report.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import UsageError
from ..types import SamplingParams
from . import options as o

Method = Annotated[str | None, typer.Option(help="Audit a method of ours; see 'foredraft methods'.")]
Mutation = Annotated[str | None, typer.Option(help="Audit a seeded wrong rule: B1..B9 or openvino. Must fail.")]
Endpoint = Annotated[str | None, typer.Option(help="Audit an OpenAI-compatible server, such as http://host:8000/v1.")]
Reference = Annotated[str | None, typer.Option(help="Compare --endpoint with this server instead of its own logprobs.")]
ApiKey = Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key of the endpoint.", show_default=False)]
Peer = Annotated[str | None, typer.Option(help="Audit another engine in this process: transformers or vllm.")]
Assistant = Annotated[str, typer.Option(help="How the peer drafts: lookup:N, layers:K, ngram:N, none, or a model.")]
Prompts = Annotated[Path | None, typer.Option(help="One prompt per line (default: four built-in ones).")]
Tokens = Annotated[int, typer.Option(help="Tokens of every sampled text.")]
Resolution = Annotated[float, typer.Option(help="Bias in total variation that a PASS rules out.")]
Alpha = Annotated[float, typer.Option(help="False-alarm rate of the whole test.")]
Texts = Annotated[int, typer.Option(help="Most texts, or requests to an endpoint.")]
Seconds = Annotated[float, typer.Option(help="Most time for sampling.")]
BatchSize = Annotated[int, typer.Option(help="Texts that are written at a time.")]
GreedyPrompts = Annotated[int, typer.Option(help="Built-in prompts of the greedy identity check, at most 20.")]
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
    words: o.Words = None,
    store: o.Store = None,
    stop: o.DraftStop = None,
    length: o.Length = None,
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
    greedy_prompts: GreedyPrompts = 4,
    exact: Exact = True,
    dtype: o.Dtype = "fp32",
    device: o.Device = "auto",
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> int:
    """Test whether texts written with speculation follow the model's own distribution."""
    from ..audit.audits import AUDITS, Order  # only whoever audits waits for these
    from ..audit.prompts import GREEDY_PROMPTS, read_prompts
    from ..audit.sequential.test import Plan
    from ..recipes import Options, read_method
    from ..recipes.spelling import as_length

    kind, what = chosen(method=method, mutation=mutation, endpoint=endpoint, peer=peer)
    if reference is not None and endpoint is None:
        raise UsageError("--reference goes with --endpoint")
    length, draft_length = as_length(length, draft_length)
    options = Options(shape, rule, drafter, draft_length, None, words, stop, length, store=store)
    if method is not None:
        what, options = read_method(method).method, read_method(method).options.joined(options)
    order = Order(
        what, model, read_prompts(prompts), Plan(((),), tokens, alpha, resolution, texts, seconds, batch_size, seed),
        SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p), options,
        greedy_tokens, () if prompts else GREEDY_PROMPTS[:greedy_prompts], dtype, device, exact, assistant, reference,
        api_key,
    )  # fmt: skip
    with listening(f"audit {what}") as (progress, loading):
        document = AUDITS[kind](order, progress, loading)
    return show(document, out, as_json)


def chosen(**kinds: str | None) -> tuple[str, str]:
    """What is to be audited: exactly one thing."""
    given = [(kind, what) for kind, what in kinds.items() if what is not None]
    if len(given) != 1:
        raise UsageError(f"say what to audit with one of {', '.join('--' + kind for kind in kinds)}")
    return given[0]


@contextmanager
def listening(title: str) -> Iterator[tuple[Callable[[int, int], None], o.LoadingBar]]:
    """Progress on stderr: first of loading, then of sampling."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=o.errors, transient=True, disable=not sys.stderr.isatty())
    task = bar.add_task(title, total=None)
    loading = o.LoadingBar()

    def progress(done: int, total: int) -> None:
        if not bar.live.is_started:  # two live displays cannot share a terminal
            loading.progress.stop()
            bar.start()
        bar.update(task, completed=min(done, total), total=total)

    try:
        with loading, redirect_stdout(sys.stderr):  # what other engines print is no part of the document
            yield progress, loading
    finally:
        bar.stop()


def show(document: dict[str, Any], out: Path | None, as_json: bool) -> int:
    """Print what was found, write it where asked, and turn the verdict into an exit code."""
    from ..audit.report import summary, write_report
    from ..audit.sequential.test import Verdict

    if out is not None:
        write_report(document, out)
    if as_json:
        print(json.dumps(document, ensure_ascii=False))
    else:
        print(f"audit of {document['subject']['name']}")
        print("\n".join(summary(document)))
        if out is not None:
            print(f"report: {out / 'audit.md'}")
    return Verdict(document["verdict"]).exit_code
