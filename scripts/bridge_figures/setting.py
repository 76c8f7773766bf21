"""The environments of other engines, and what they write without drafts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from foredraft.integrations.load_back.engines import Run, Served
from foredraft.integrations.load_back.head_check import QUESTIONS, Bench
from foredraft.provenance import write_json

PROPOSERS = "foredraft.integrations.vllm_plugin.proposer"


@dataclass
class Setting:
    """The environments, and where records are kept. What engines write without drafts is measured once."""

    vllm: str | None
    llama: str | None
    records: Path
    benches: dict[tuple[str, ...], Bench] = field(default_factory=dict)

    def bench(self, questions: tuple[str, ...] = QUESTIONS) -> Bench:
        """SmolLM2 here, with the plain runs of other engines that are known already."""
        if questions not in self.benches:
            made = self.benches[questions] = Bench.of("smollm2", questions=questions)
            for engine in ("vllm", "llama.cpp"):
                file = self._file(engine, questions)
                if file.exists():
                    known = json.loads(file.read_text(encoding="utf-8"))
                    made.plain[engine] = Served(known["version"], [Run(**run) for run in known["runs"]])
        return self.benches[questions]

    def keep_plain(self) -> None:
        for questions, bench in self.benches.items():
            for engine, served in bench.plain.items():
                write_json(self._file(engine, questions), asdict(served))

    def _file(self, engine: str, questions: tuple[str, ...]) -> Path:
        return self.records / f"plain-{engine}-{len(questions)}.json"
