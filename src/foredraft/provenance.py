"""Where a file came from: command, commit, versions, device, seed, data hash; written beside every artefact.

It knows nothing of what the artefact is, and keeps no host name, user name or environment.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from .jsonl import replacing

PACKAGES = ("foredraft", "torch", "transformers", "numpy", "tokenizers", "safetensors")


def provenance(
    *,
    seed: int | None = None,
    data: Mapping[str, str] | None = None,
    argv: Iterable[str] | None = None,
    packages: Iterable[str] = PACKAGES,
    **more: Any,
) -> dict[str, Any]:
    """A record of this process; `data` maps a name to the sha256 of what was read, `more` is taken as it is."""
    return {
        "argv": list(command() if argv is None else argv),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(packages),
        "device": device(),
        "seed": seed,
        "data": dict(data or {}),
        **more,
    }


def command() -> list[str]:
    """The command of this process, without where things lie on this machine."""
    return ["foredraft", *map(without_folders, sys.argv[1:])]


def without_folders(word: str) -> str:
    """An argument whose absolute paths have lost their folders: `judge=/data/me/judge,8` is `judge=judge,8`."""
    return re.sub(r"(^|(?<=[=,:]))/(?!/)(?:[^/=,:\s]+/)*([^/=,:\s]*)", r"\2", word)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is either the old one or the whole new one, whatever happens meanwhile."""
    with replacing(path) as fresh:
        fresh.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def commit() -> str | None:
    """The commit of the source tree that this package runs from, `+` after it where files differ; None = no tree.

    A copy that travelled without its history is told by FOREDRAFT_COMMIT.
    """
    here = Path(__file__).resolve().parent
    head = _git(here, "rev-parse", "HEAD")
    if head is None or _git(here, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return os.environ.get("FOREDRAFT_COMMIT")  # no tree, or that of a project into which the package was installed
    return head + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no", ".") else "")


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of those packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def own_version() -> str:
    """foredraft's own; a copy that runs without having been installed has none to tell."""
    return versions(["foredraft"]).get("foredraft", "source")


def device() -> dict[str, Any]:
    """The processor, and the GPU if torch sees one."""
    found: dict[str, Any] = {"cpu": cpu_model(), "cores": usable_cores()}
    torch = sys.modules.get("torch")  # whoever did not need torch does not load it for this
    if torch is not None:
        found["threads"] = torch.get_num_threads()
        if torch.cuda.is_available():
            found["gpu"] = torch.cuda.get_device_name()
    return found


def processor() -> str:
    """What does the work, in a word or two: the GPU if torch sees one."""
    found = device()
    return str(found.get("gpu", found["cpu"]))


def cpu_model() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command; None where it fails or there is no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
