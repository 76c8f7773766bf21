"""A process that shared its work with others parts from them before it ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

ALONE = """
import atexit
import torch.distributed as dist
from foredraft.runtime.process_group import join_group
atexit.register(lambda: print("still there:", dist.is_initialized()))  # what is registered first is called last
join_group(cuda=False)
join_group(cuda=False)
print("joined:", dist.is_initialized())
"""


def test_the_group_is_left_at_the_end() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", ALONE]
    found = subprocess.run(command, env=os.environ | here, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.splitlines() == ["joined: True", "still there: False"]
