"""Kernels that begin while the kernel in front of them still runs, on GPUs that can (compute capability 9 and later).

Such a kernel may fetch weights at once; before it touches anything that another kernel writes or reads it must call
`wait_for_others`. Every kernel that is launched so does, so the end of one implies the end of all before it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # a CPU build of torch comes without it
    triton = None

MOST_ROWS = 64  # with more the kernels that wait would take room from those that they wait for


def early(x: Tensor) -> dict[str, Any]:
    """Options of a launch for rows x [T, ..], whose kernel waits by itself."""
    chosen = x.is_cuda and len(x) <= MOST_ROWS and _can(x.device)
    return {"EARLY": True, "launch_pdl": True} if chosen else {"EARLY": False}


@cache
def _can(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 9


if triton is not None:

    @triton.jit
    def wait_for_others():  # type: ignore[no-untyped-def]
        """The next kernel may come, and this one waits until those before it have ended."""
        gdc_launch_dependents()
        gdc_wait()
