"""`foredraft bench`: measure methods, the engine alone and other engines, and make a report of what was measured.

The last line on stdout is one JSON document; `--json` leaves nothing else there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from ..errors import ForedraftError, UsageError
from . import options as o

if TYPE_CHECKING:
    from ..bench.pipeline import Listener


class RunByDefault(TyperGroup):
    """`foredraft bench --limit 2` means `foredraft bench run --limit 2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        asked = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        unknown = bool(args) and not args[0].startswith("-")
        return super().parse_args(ctx, args if asked or unknown else ["run", *args])


bench = typer.Typer(
    cls=RunByDefault,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure methods against plain decoding (run, the default), the engine alone, and other engines.",
)

Data = Annotated[Path | None, typer.Option(envvar="FOREDRAFT_DATA", help="Folder with published tasks.")]
Tasks = Annotated[
    str, typer.Option(help="Tasks or groups: own, spec-bench, eagle, quality, arc, agentic, text, context, or names.")
]
Methods = Annotated[
    str,
    typer.Option(help="a,b:option=value,c; options: shape, rule, drafter, length, stop, words .."),
]
Limit = Annotated[int | None, typer.Option(help="Questions a task, evenly spread.")]
Out = Annotated[Path | None, typer.Option(help="Folder for records; an unfinished run in it is continued.")]
BatchSize = Annotated[int, typer.Option(help="Questions that are answered at a time.")]
Seed = Annotated[int, typer.Option(help="Seed of all sampling.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@bench.command()
def run(
    model: o.Model = o.DEFAULT_MODEL,
    methods: Methods = "all",
    tasks: Tasks = "",
    data: Data = None,
    limit: Limit = None,
    temperature: o.Temperature = 0.0,
    batch_size: BatchSize = 1,
    seed: Seed = 0,
    max_new_tokens: o.MaxNewTokens = 128,
    max_length: o.MaxLength = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    quantize: o.Quantize = None,
    kv_cache_memory_bytes: o.KVMemory = None,
    kv_cache_dtype: o.KVDtype = "auto",
    forget: Annotated[bool, typer.Option("--forget", help="Fresh drafters for every question.")] = False,
    out: Out = None,
    as_json: Json = False,
) -> int:
    """Measure methods and plain decoding in turns, question by question."""
    from ..bench.pipeline import Order, run_bench  # only whoever measures waits for these

    order = Order(
        model=model, methods=methods, tasks=tasks, data=data, out=out, limit=limit, temperature=temperature,
        batch_size=batch_size, seed=seed, max_new_tokens=max_new_tokens, max_length=max_length, dtype=dtype,
        device=device, quantize=quantize, kv_cache_memory_bytes=kv_cache_memory_bytes, kv_cache_dtype=kv_cache_dtype,
        forget=forget,
    )  # fmt: skip
    with listening() as listener:
        document = run_bench(order, listener)
    if not as_json:
        show(document, f"{model} {document['settings']['dtype']}, T={temperature:g}, against plain decoding")
    return finish(document)


@contextmanager
def listening() -> Iterator[Listener]:
    """Progress on stderr; an interrupted run says how to go on."""
    from ..bench.pipeline import Listener
    from ..bench.report import terminal

    loading = o.LoadingBar()
    bar = terminal.Bar(o.errors)
    stopped = False

    def progress(done: int, total: int, what: str) -> None:
        nonlocal stopped
        if not stopped:  # two live displays cannot share a terminal
            loading.progress.stop()
            bar.progress.start()
            stopped = True
        bar(done, total, what)

    try:
        with loading:
            yield Listener(lambda text: o.errors.print(text, style="dim", markup=False), loading, progress)
    except KeyboardInterrupt:
        raise ForedraftError("interrupted; the same command goes on where it stopped") from None
    finally:
        bar.progress.stop()


def show(document: dict[str, Any], title: str) -> None:
    """The tables of a document."""
    from ..bench.report import terminal

    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    rows = document["rows"]
    first = terminal.peer_table(document) if "engines" in document else terminal.speed_table(rows, title, console.width)
    for table in (first, terminal.task_table(rows), terminal.quality_table(rows)):
        if table is not None:
            console.print(table)
    for warning in filter(None, (terminal.disturbance(document), terminal.failures(document))):
        console.print(warning, style="bold", markup=False, highlight=False)
    console.print(f"records and provenance: {document['out']}", markup=False, highlight=False)


def finish(document: dict[str, Any]) -> int:
    """The last line."""
    print(json.dumps(document, ensure_ascii=False))
    return 0


def numbers(text: str, kind: type, option: str) -> tuple[Any, ...]:
    try:
        found = tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found:
        raise UsageError(f"{option} takes numbers with commas between them, not {text!r}")
    return found


@bench.command()
def engine(
    shape: Annotated[str, typer.Option(help="Model shape: smollm2, llama-1b, llama-8b, llama-70b.")] = "smollm2",
    rate: Annotated[str, typer.Option(help="Chance that a drafted token is right; several with commas.")] = "0.6,0.8",
    length: Annotated[str, typer.Option(help="Tokens drafted per round; several with commas.")] = "3,7",
    context: Annotated[int, typer.Option(help="Tokens of the prompt.")] = 512,
    max_new_tokens: o.MaxNewTokens = 128,
    batch_size: BatchSize = 1,
    rounds: Annotated[int, typer.Option(help="Times that everything is measured, in turns.")] = 5,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    weights: Annotated[
        str, typer.Option(help="wide, int8 or fp8 with a scale per output, or int4 by groups.")
    ] = "wide",
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> int:
    """Measure the engine alone: random weights of a named shape, drafts of a set acceptance rate."""
    from ..bench.engine_only import EngineOrder, run_engine

    order = EngineOrder(
        shape, numbers(rate, float, "--rate"), numbers(length, int, "--length"), context, max_new_tokens, batch_size,
        rounds, dtype, device, seed, out, weights,
    )  # fmt: skip
    with listening() as listener:
        document = run_engine(order, listener.progress)
    if not as_json:
        show(document, f"engine alone, shape {shape} {document['settings']['dtype']}")
        passes = [f"{p['rows']}: {p['ms']:.1f} ms" for p in document["passes"]]
        print("one pass over n rows  " + "  ".join(passes))
        print(f"of a plain step, {document['outside_pass_share']:.0%} is spent outside of that pass")
    return finish(document)


@bench.command()
def timeline(
    prompt: Annotated[str, typer.Argument(help="What to write on after.")] = "The library opens at",
    model: o.Model = o.DEFAULT_MODEL,
    method: o.Method = "pearl",
    max_new_tokens: o.MaxNewTokens = 64,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    out: Annotated[Path, typer.Option(help="The picture, an SVG file.")] = Path("timeline.svg"),
) -> int:
    """Draw what ran when on which device, for methods that draft while the target verifies."""
    from ..bench.lane_chart import draw, watch
    from ..recipes import LLM

    with o.LoadingBar() as bar:
        llm = LLM(model, method, dtype=dtype, device=device, progress=bar)
    spans = watch(llm, llm.method, prompt, max_new_tokens)
    draw(spans, f"{method} on {model}", out)
    return finish({"out": str(out), "spans": [span._asdict() for span in spans]})


@bench.command()
def peers(
    model: o.Model = o.DEFAULT_MODEL,
    methods: Methods = "prompt-lookup,suffix",
    engines: Annotated[
        str, typer.Option(help="Other engines to measure.")
    ] = "transformers,llama.cpp,llama.cpp-native,xllamacpp,openvino,vllm",
    tasks: Tasks = "",
    data: Data = None,
    limit: Limit = None,
    max_new_tokens: o.MaxNewTokens = 128,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    draft_layers: Annotated[int, typer.Option(help="Layers of the small model of assisted decoding; 0 = a third.")] = 0,
    vllm_python: Annotated[str | None, typer.Option(help="Interpreter of an environment that has vLLM.")] = None,
    llama_python: Annotated[str | None, typer.Option(help="The same with xllamacpp.")] = None,
    llama_draft: Annotated[
        Path | None, typer.Option(help="GGUF draft model for it (foredraft export fastdraft --to llama.cpp).")
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="An OpenAI-compatible server that is running, as NAME=URL; may be repeated."),
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> int:
    """Measure other engines beside ours, in turns, on the same ids; greedy, one prompt at a time."""
    from ..bench.openai_peer import read_endpoints
    from ..bench.peers.compare import PeerOrder, run_peers
    from ..bench.pipeline import Order

    order = Order(
        model=model, methods=methods, tasks=tasks, data=data, out=out, limit=limit, max_new_tokens=max_new_tokens,
        dtype=dtype, device=device,
    )  # fmt: skip
    asked = PeerOrder(
        order, engines, draft_layers, vllm_python, llama_python, llama_draft, read_endpoints(endpoint)
    )  # fmt: skip
    with listening() as listener:
        document = run_peers(asked, listener)
    if not as_json:
        show(document, f"{model} {document['settings']['dtype']}")
    return finish(document)


@bench.command("store")
def store_figures(
    files: Annotated[list[Path], typer.Argument(help="Text files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="Folder for the page and its figures; an unfinished run goes on.")],
    sizes: Annotated[str, typer.Option(help="Tokens of the stores, with commas.")] = "1000000,10000000",
    suffix: Annotated[list[str] | None, typer.Option(help="Endings of the files to read in folders.")] = None,
    model: o.Model = o.DEFAULT_MODEL,
    as_json: Json = False,
) -> int:
    """Measure datastores: time to build, bytes a token, time of a look-up, at several sizes."""
    from ..bench.store_bench import StoreOrder, page, run_store_bench

    endings = tuple("." + ending.lstrip(".") for ending in suffix or ["py"])
    order = StoreOrder(tuple(files), out, numbers(sizes, int, "--sizes"), model, endings)
    with listening() as listener:
        document = run_store_bench(order, listener.progress)
    if not as_json:
        print(page(document))
    return finish(document)


@bench.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of finished runs.", metavar="DIR...")],
    out: Annotated[Path | None, typer.Option(help="Folder for the report (default: report/ in the first DIR).")] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "foredraft benchmark",
    as_json: Json = False,
) -> int:
    """Make one page, a page of Markdown and pictures of what was measured."""
    from ..bench.report.make import make_report

    document = make_report(folders, out, title)
    if not as_json:
        for path in (document["html"], document["markdown"], *document["images"]):
            print(path)
    return finish(document)
