"""The parts: each from a setting to rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from foredraft.integrations.export.exporter import TARGET, ExportOrder, export_head
from foredraft.integrations.load_back.engines import Run, Served, vllm
from foredraft.integrations.load_back.head_check import QUESTIONS, Bench, check_export
from foredraft.integrations.vllm_plugin.judge_sampler import FOLDER, RULE

from .servers import audited, benched
from .setting import PROPOSERS, Setting

# Prompts in which text comes back, as lookups need it.
COPIES = (
    "Repeat this list three times, word for word: red apples, green pears, yellow plums, blue grapes.",
    "Write this line four times: The ship leaves the harbour at noon and comes back in the evening.",
    "Copy this function twice: def add(first, second): return first + second",
    "Correct the spelling and give the whole text back: The libary opens at nine and closses at six every day.",
)
Rows = list[dict[str, Any]]


def heads(engine: str, kind: str, schema: str, setting: Setting) -> Rows:
    """An exported head, there and here."""
    python = setting.vllm if engine == "vllm" else setting.llama
    assert python is not None
    with TemporaryDirectory() as place:
        more = {"storage": "f32"} if engine == "llama.cpp" else {"dtype": "fp32"}
        order = ExportOrder(kind, engine, Path(place) / "out", "smollm2", schema, **more)
        export_head(order)
        document = check_export(order, python, setting.bench())
    document.pop("provenance")
    return [document | {"schema": schema}]


def proposer(name: str, questions: tuple[str, ...], setting: Setting) -> Rows:
    """A proposer of ours inside vLLM, or vLLM's own n-grams, beside plain decoding."""
    assert setting.vllm is not None
    bench = setting.bench(questions)
    how: dict[str, Any] = {"method": "custom_class", "model": f"{PROPOSERS}.{name}", "num_speculative_tokens": 8}
    if name == "ngram":
        how |= {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
        del how["model"]
    with TemporaryDirectory() as place:
        target = Path(place) / TARGET
        export_head(ExportOrder(TARGET, "vllm", target, "smollm2", dtype="fp32"))
        run = partial(vllm, setting.vllm, target, bench.prompts, bench.tokens, bench.stop_ids)
        plain = bench.plain["vllm"] = bench.plain.get("vllm") or run()
        found = run(speculative=how)
    what = "ten questions" if questions is QUESTIONS else f"{len(questions)} copies"
    return [row("plain", what, plain, plain), row(name, what, found, plain)]


def row(name: str, prompts: str, served: Served, plain: Served) -> dict[str, Any]:
    return {
        "name": name,
        "prompts": prompts,
        "version": served.version,
        "tokens": sum(map(len, served.ids)),
        "accepted": served.accepted,
        "drafted": served.drafted,
        "seconds": round(served.seconds, 1),
        "same ids": f"{served.same(plain.ids)} of {len(plain.runs)}",
    }


PROBLEMS = (
    "We buy 3 pens at 14 coins each, 2 cups at 25 coins each. What do we pay? Answer as a clerk.",
    "We buy 4 maps at 12 coins each, 3 ropes at 9 coins each. What do we pay? Answer as a sailor.",
    "We buy 2 lamps at 31 coins each, 5 nails at 4 coins each. What do we pay? Answer as a teacher.",
)
JUDGED, DRAFTED = "judge:0.59", 25


def judge(setting: Setting) -> Rows:
    """The demonstration pair in vLLM, with the exact rule and with its judge; and the same here."""
    assert setting.vllm is not None
    bench = Bench.of("judge-demo", tokens=64, questions=PROBLEMS)
    with TemporaryDirectory() as place:
        target, drafter = Path(place) / TARGET, Path(place) / "drafter"
        export_head(ExportOrder(TARGET, "vllm", target, "judge-demo", dtype="fp32"))
        export_head(ExportOrder("fastdraft", "vllm", drafter, "judge-demo", dtype="fp32"))
        how = {"method": "draft_model", "model": str(drafter), "num_speculative_tokens": DRAFTED}
        run = partial(vllm, setting.vllm, target, bench.prompts, bench.tokens, bench.stop_ids)
        folder = str(resources.files("foredraft") / "weights" / "judge-demo" / "judge")
        on = {FOLDER: folder, RULE: JUDGED}
        judged, exact = run(speculative=how, environment=on), run(speculative=how)
    here = bench.ours(f"fastdraft:shape=chain,length={DRAFTED}")
    ours = bench.ours("judge:threshold=0.59")
    # vLLM drafts after its first token only. From that token on both engines' rounds begin at the same places.
    later = Bench(bench.llm, [p + ids[:1] for p, ids in zip(bench.prompts, judged.ids, strict=True)], bench.tokens - 1)
    rest = Served(judged.version, [Run(run.ids[1:], 0, 0, 0.0) for run in judged.runs])
    return [
        judged_row("vLLM", "exact", exact, here, " (ours)"),
        judged_row("foredraft", "exact", here, here, ""),
        judged_row("vLLM", JUDGED, judged, ours, " (ours)"),
        judged_row("foredraft", JUDGED, ours, ours, ""),
        judged_row("foredraft after vLLM's first token", JUDGED, later.ours("judge:threshold=0.59"), rest, " (vLLM's)"),
    ]


def judged_row(who: str, rule: str, served: Served, other: Served, whose: str) -> dict[str, Any]:
    found = row(who, "", served, other) | {"who": who, "rule": rule}
    found["same ids"] += whose
    return found


PARTS: dict[str, tuple[str, Callable[[Setting], Any]]] = {
    "heads-vllm-eagle3": ("vllm", partial(heads, "vllm", "eagle3", "plain")),
    "heads-vllm-eagle": ("vllm", partial(heads, "vllm", "eagle", "plain")),
    "heads-vllm-fastdraft": ("vllm", partial(heads, "vllm", "fastdraft", "plain")),
    "heads-vllm-speculators": ("vllm", partial(heads, "vllm", "eagle3", "speculators")),
    "heads-llama-eagle3": ("llama", partial(heads, "llama.cpp", "eagle3", "plain")),
    "heads-llama-fastdraft": ("llama", partial(heads, "llama.cpp", "fastdraft", "plain")),
    "plugin-suffix": ("vllm", partial(proposer, "SuffixProposer", QUESTIONS)),
    "plugin-lookup": ("vllm", partial(proposer, "LookupProposer", QUESTIONS)),
    "plugin-auto": ("vllm", partial(proposer, "AutoProposer", QUESTIONS)),
    "plugin-copies-auto": ("vllm", partial(proposer, "AutoProposer", COPIES)),
    "plugin-copies-ngram": ("vllm", partial(proposer, "ngram", COPIES)),
    "judge": ("vllm", judge),
    "audit-vllm": ("vllm", partial(audited, "vllm")),
    "audit-vllm-unmended": ("vllm", partial(audited, "vllm-unmended")),
    "audit-llama": ("llama", partial(audited, "llama")),
    "bench-servers": ("vllm", benched),
}
