"""A tiny model in a folder, with a byte tokenizer, and a command line that has the commands of labels alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from foredraft.cli.judge.mine import annotate, mine
from tests.bench.conftest import write_tokenizer, write_weights

app = typer.Typer()
app.command()(mine)
app.command()(annotate)


def tiny_model(folder: Path) -> Path:
    write_weights(folder)
    write_tokenizer(folder)
    return folder


def command(*arguments: object) -> int:
    """Run `mine` or `annotate`; errors are raised as they are."""
    return int(typer.main.get_command(app).main([str(a) for a in arguments], "judge", standalone_mode=False) or 0)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
