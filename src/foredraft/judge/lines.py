"""A file of lines that survives a kill: what was found under certain settings. Other settings begin it anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Lines:
    """JSON lines below a first one with the settings; each reaches the disk at once."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.found = path, list[dict[str, Any]]()
        head = json.dumps({"settings": settings}, sort_keys=True)
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        if lines[:1] != [head]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(head + "\n", encoding="utf-8")
            return
        self.found = [json.loads(line) for line in lines[1:-1]]
        if lines[-1]:  # a line without its end was cut off by a kill
            path.write_text("\n".join([*lines[:-1], ""]), encoding="utf-8")

    def add(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.found.append(line)
