"""USE.md of an exported head: the exact command, the length it was trained for, and what to expect."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ...models.heads import HeadSpec

SERVED = {"eagle3": "eagle3", "eagle": "eagle", "fastdraft": "draft_model"}  # method names of vLLM
SGLANG = {"eagle3": "EAGLE3", "eagle": "EAGLE", "fastdraft": "STANDALONE"}
LLAMA = {"eagle3": "draft-eagle3", "fastdraft": "draft-simple"}


@dataclass(frozen=True, slots=True)
class Use:
    """What an export is and where it lies."""

    spec: HeadSpec
    engine: str
    target: str
    out: Path
    schema: str

    @property
    def length(self) -> int:
        return max(self.spec.length, 1)


def use_page(use: Use) -> str:
    """The page, in Markdown."""
    spec, parts = use.spec, {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama, "transformers": _transformers}
    lines = [
        f"# {spec.kind} head for {use.target}, exported for {use.engine}",
        "",
        f"Trained to draft {use.length} tokens ahead"
        + (f", of {spec.draft_vocab_size} words." if spec.draft_vocab_size and spec.kind == "eagle3" else "."),
        f"It belongs to {use.target} ({spec.target.num_layers} layers of width {spec.target.hidden_size}, "
        f"{spec.target.vocab_size} tokens) and is of no use to another model.",
        "",
        *parts[use.engine](use),
        "",
        "Greedy drafts, accepted tokens: about those of `foredraft bench` with the same method and length; the engine "
        "drafts chains where foredraft drafts trees.",
    ]
    return "\n".join(lines) + "\n"


def _vllm(use: Use) -> list[str]:
    config = {"method": SERVED[use.spec.kind], "model": str(use.out), "num_speculative_tokens": use.length}
    serve = f"vllm serve TARGET --speculative-config '{json.dumps(config)}'"
    lines = ["```", serve if use.schema == "plain" else f"vllm serve {use.out}", "```"]
    if use.schema != "plain":
        lines += [
            "",
            f"The verifier is read from this folder's config; it is `{use.target}` there: change it to yours.",
        ]
    return [
        *lines,
        "",
        "vLLM guesses the method from the whole path, so keep `eagle-`, `eagle3`, `dflash` and `dspark` out of it",
        "where they do not fit. On its CPU build (0.32) sampled text is wrong with any drafter: use temperature 0.",
    ]


def _sglang(use: Use) -> list[str]:
    return [
        "```",
        f"python -m sglang.launch_server --model-path TARGET --speculative-algorithm {SGLANG[use.spec.kind]} "
        f"--speculative-draft-model-path {use.out} --speculative-num-steps {use.length} "
        f"--speculative-eagle-topk 1 --speculative-num-draft-tokens {use.length + 1}",
        "```",
        "",
        "`EAGLE` with an EAGLE-3 head accepts nothing and says nothing: use the algorithm above.",
    ]


def _llama(use: Use) -> list[str]:
    return [
        "```",
        f"llama-server -m TARGET.gguf -md {use.out.name} --spec-type {LLAMA[use.spec.kind]} "
        f"--spec-draft-n-max {use.length}",
        "```",
        "",
        "On a CPU llama.cpp gets slower with this: a pass costs nearly as much for every further token (SmolLM2, one",
        "thread: 13.6 s plain, 39.9 s with eagle3 for 282 tokens). Measure before you serve.",
    ]


def _transformers(use: Use) -> list[str]:
    if use.spec.kind == "fastdraft":
        return [
            "```python",
            f'assistant = AutoModelForCausalLM.from_pretrained("{use.out}")',
            f"assistant.generation_config.num_assistant_tokens = {use.length}",
            "model.generate(**inputs, assistant_model=assistant)",
            "```",
        ]
    return [
        "transformers has no such drafter; foredraft drafts and verifies inside `generate()` (pip install foredraft):",
        "",
        "```python",
        f'model.generate(**inputs, custom_generate="{use.out}", trust_remote_code=True, tokenizer=tokenizer)',
        "```",
    ]
