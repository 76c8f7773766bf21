"""Processes that share the work, as torchrun starts them."""

from __future__ import annotations

import atexit

import torch.distributed as dist


def join_group(cuda: bool) -> None:
    """Meet the others, once, and part from them when this process ends.

    A group that is still there when the interpreter ends is taken down with its threads running, which now and then
    aborts a process whose work is done.
    """
    if not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo")
        atexit.register(_leave_group)


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
