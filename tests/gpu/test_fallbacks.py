"""What older GPUs lack, switched off on a newer one: the same texts, or one line that says what is missing.

Hopper and later: kernels that begin early (capability 9), tiles of attention that want more than 160 KiB of shared
memory. Ada and later: keys and values in float8 (capability 8.9). wgmma is the compiler's choice; below it takes mma.
"""

from __future__ import annotations

import pytest
import torch

from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.errors import UsageError
from foredraft.kernels import early_launch
from foredraft.runtime import TorchExecutor
from foredraft.runtime.cuda import tree_attention
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.runtime.cuda.paged_cache import KVOptions

from .test_graphs import decoder
from .test_paging import texts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
SMALL, LARGE = (99 << 10, 40), (1 << 20, 132)  # shared memory of a program, multiprocessors


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "references"])
@pytest.mark.parametrize("memory", [SMALL, LARGE], ids=["small memory", "large memory"])
@pytest.mark.parametrize("early", [True, False], ids=["early", "in turn"])
def test_texts_are_the_same_without(
    early: bool, memory: tuple[int, int], kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    model = decoder()
    expected = texts(TorchExecutor(model, 6, 500))
    if not early:
        monkeypatch.setattr(early_launch, "_can", lambda device: False)
    monkeypatch.setattr(tree_attention, "_device", lambda device: memory)
    monkeypatch.setattr(tree_attention, "enabled", kernels)
    for shape in (None, Eagle2Tree(nodes=12, width=4, depth=3)):
        assert texts(GraphExecutor(model, 6, 500), shape) == expected


def test_float8_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    with pytest.raises(UsageError, match=r"fp8 need a GPU of compute capability 8\.9"):
        GraphExecutor(decoder(), 1, 64, kv=KVOptions(dtype="fp8"))
