"""`foredraft judge pair`: train the pair that judges are shown on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import options as o

EVERY_FAMILY = "all"


def pair(
    out: Annotated[Path, typer.Option(help="Folder for target/ and drafter/; what is there already is kept.")],
    steps: Annotated[int, typer.Option(help="Steps of the target.")] = 4000,
    drafter_steps: Annotated[int, typer.Option(help="Steps of the drafter.")] = 4000,
    seconds: Annotated[float, typer.Option(help="Time for the target; its rate falls to the floor by then.")] = 480.0,
    drafter_seconds: Annotated[float, typer.Option(help="Time for the drafter.")] = 240.0,
    drafter_goal: Annotated[float, typer.Option(help="Solved share that ends the drafter's training.")] = 0.8,
    rows: Annotated[int, typer.Option(help="Texts a step.")] = 128,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    rank: Annotated[int, typer.Option(help="Rank of the target's delta.")] = 8,
    drafter_rank: Annotated[int, typer.Option(help="Rank of the drafter's delta.")] = 32,
    drafter_base: Annotated[str, typer.Option(help="fastdraft (the shipped head), or layers:K.")] = "fastdraft",
    other: Annotated[float, typer.Option(help="Share of the other style in the training text.")] = 0.3,
    slip: Annotated[float, typer.Option(help="Share of results that the training text first shows wrong.")] = 0.05,
    families: Annotated[str, typer.Option(help="Families of problems, with commas.")] = EVERY_FAMILY,
    parts: Annotated[str, typer.Option(help="target, drafter or both.")] = "target,drafter",
    model: o.Model = o.DEFAULT_MODEL,
    try_every: Annotated[
        int, typer.Option(help="Steps between trials of the target; the drafter has four times as many.")
    ] = 1000,
    tries: Annotated[int, typer.Option(help="Fresh problems of a trial.")] = 224,
    final_tries: Annotated[int, typer.Option(help="Fresh problems of the last trial.")] = 700,
    storage: Annotated[str, typer.Option(help="int8 or bf16.")] = "int8",
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Train a target that solves program-checked problems and a drafter that words them differently."""
    from ...judge.fit.batches import DRAFTER, TARGET, Manner
    from ...judge.fit.demo_pair import PairOrder, train_pair
    from ...judge.fit.lora_trainer import LoraPlan
    from ...judge.problems.families import FAMILIES

    common: dict[str, Any] = {"rows": rows, "lr": lr, "tries": tries, "seed": seed}
    order = PairOrder(
        out=out, rank=rank, drafter_rank=drafter_rank, model=model, drafter_base=drafter_base, dtype=dtype,
        target=LoraPlan(steps, seconds or math.inf, try_every=try_every, **common),
        drafter=LoraPlan(drafter_steps, drafter_seconds or math.inf, goal=drafter_goal,
                       try_every=max(1, try_every // 4), **common),
        target_manner=Manner(TARGET.style, other, slip),
        drafter_manner=Manner(DRAFTER.style, other, DRAFTER.slip, choose=DRAFTER.choose),
        families=tuple(FAMILIES) if families == EVERY_FAMILY else tuple(families.split(",")),
        parts=tuple(parts.split(",")), final_tries=final_tries, device=device, storage=storage,
    )  # fmt: skip
    bar = o.StageBar()
    with bar.progress:
        cards = train_pair(order, bar)
    if not as_json:
        _show(cards, out)
    print(json.dumps(cards))
    return 0


def _show(cards: dict[str, Any], out: Path) -> None:
    for part, card in cards.items():
        if card.get("kept"):
            print(f"{part}: {out / part} is there already and was kept; remove it to train it again")
            continue
        by_family = ", ".join(f"{name} {share:.1%}" for name, share in card["solved"].items() if name != "all")
        print(f"{part}: {card['solved']['all']:.1%} of {card['problems']} fresh problems solved ({by_family})")
        print(f"{part}: {out / part}")
