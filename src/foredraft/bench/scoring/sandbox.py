"""Runs a program that a model wrote, in a process of its own with little time, little memory and no network.

`jail.py` is what that process runs. This file knows how to start it and how to end it, and nothing of tests.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JAIL = Path(__file__).with_name("jail.py")
SECONDS, MEGABYTES = 5, 512
MOST_BYTES = 4096  # that are heard of a program


def passes(program: str, seconds: int = SECONDS, megabytes: int = MEGABYTES) -> bool:
    """Whether a program runs to its end without an exception, within its limits."""
    token = secrets.token_hex(8)
    command = [sys.executable, "-I", "-S", str(JAIL), token, str(seconds), str(megabytes)]
    with tempfile.TemporaryDirectory(prefix="foredraft-jail-") as folder, tempfile.TemporaryFile() as source:
        source.write(program.encode())
        source.seek(0)
        jail = subprocess.Popen(
            command,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            said = _listen(jail, 2 * seconds)  # the jail limits its processor time itself; this is for sleepers
        finally:
            _end(jail)
    return token.encode() in said


def _listen(jail: subprocess.Popen[bytes], seconds: float) -> bytes:
    """What the jail says before it closes, at most so many bytes and seconds."""
    assert jail.stdout is not None
    said, end = b"", time.monotonic() + seconds
    while len(said) < MOST_BYTES and (left := end - time.monotonic()) > 0:
        if select.select([jail.stdout], [], [], left)[0]:
            part = os.read(jail.stdout.fileno(), MOST_BYTES)
            if not part:
                break
            said += part
    return said


def _end(jail: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it has started."""
    try:
        os.killpg(jail.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        jail.kill()
    jail.wait()
    if jail.stdout is not None:
        jail.stdout.close()
