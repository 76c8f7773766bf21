"""What all tests share: one thread, so that as many workers as there are cores do not fight over them."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
