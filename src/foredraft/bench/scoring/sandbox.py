"""Runs a program that a model wrote, in a process of its own with little time, little memory and no network.

`jail.py` is what that process runs. This file knows how to start it and how to end it, and nothing of tests.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

JAIL = Path(__file__).with_name("jail.py")
SECONDS, MEGABYTES = 5, 512


def passes(program: str, seconds: int = SECONDS, megabytes: int = MEGABYTES) -> bool:
    """Whether a program runs to its end without an exception, within its limits."""
    token = secrets.token_hex(8)
    command = [sys.executable, "-I", "-S", str(JAIL), token, str(seconds), str(megabytes)]
    with tempfile.TemporaryDirectory(prefix="foredraft-jail-") as folder:
        jail = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            # The jail limits its processor time itself; this is for programs that sleep.
            said, _ = jail.communicate(program.encode(), timeout=2 * seconds)
        except subprocess.TimeoutExpired:
            said = b""
        finally:
            _end(jail)
    return token.encode() in said


def _end(jail: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it has started."""
    try:
        os.killpg(jail.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        jail.kill()
    jail.wait()
    for stream in (jail.stdin, jail.stdout):
        if stream is not None:
            stream.close()
