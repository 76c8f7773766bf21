"""Damaged model and head files: always our own error, no other exception, and no memory for sizes that are lies."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from foredraft.errors import ForedraftError
from foredraft.models.heads.artefact import CONFIG, FORMAT, WEIGHTS, read_spec, read_weights
from foredraft.models.load.folders import locked
from foredraft.models.load.gguf import convert_gguf
from foredraft.models.load.weight_names import gguf_to_hf

from .ggufs import write_gguf

MUTANTS = 60  # a seed each; 1,500 of them once raised 10 uncaught exceptions


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, "llama")
    return path.read_bytes()


def header(data: bytes) -> int:
    """Where the metadata and the tensor table end, nearly: weights begin after."""
    return data.rindex(b"output_norm.weight") if b"output_norm.weight" in data else len(data) // 2


def mutated(data: bytes, seed: int) -> bytes:
    """Some bytes of the metadata changed, or a piece of the file lost or doubled."""
    rng = random.Random(seed)
    found, end = bytearray(data), header(data)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(end)
        kind = rng.choice((0, 0, 0, 0, 1, 2, 3))
        if kind == 0:
            found[place] = rng.randrange(256)
        elif kind == 1:
            found[place : place + 8] = struct.pack("<Q", rng.choice((0, 1, 1 << 31, 1 << 40, (1 << 64) - 1)))
        elif kind == 2:
            del found[place : place + rng.randint(1, 64)]
        else:
            found[place:place] = found[place : place + rng.randint(1, 64)]
    return bytes(found)


def test_mutated_gguf_files_raise_our_errors_alone(model: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mutant.gguf"
    survived = 0
    tracemalloc.start()
    for seed in range(MUTANTS):
        path.write_bytes(mutated(model, seed))
        try:
            convert_gguf(path, tmp_path / f"out-{seed}")
            survived += 1
        except ForedraftError as error:
            assert "\n" not in str(error)
            assert not (tmp_path / f"out-{seed}").exists()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert survived < MUTANTS
    assert peak < 200 << 20


@pytest.mark.parametrize(
    ("key", "value"),
    [("llama.block_count", 1 << 31), ("llama.attention.key_length", 1 << 30), ("llama.feed_forward_length", 1 << 31)],
)
def test_sizes_that_no_tensor_has_are_refused_before_anything_is_made(
    model: bytes, tmp_path: Path, key: str, value: int
) -> None:
    place = model.index(key.encode()) + len(key) + 4  # after the name and the type, a uint32
    path = tmp_path / "model.gguf"
    path.write_bytes(model[:place] + struct.pack("<I", value) + model[place + 4 :])
    tracemalloc.start()
    with pytest.raises(ForedraftError):
        convert_gguf(path, tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20


def test_an_array_that_is_longer_than_its_file(model: bytes, tmp_path: Path) -> None:
    key = b"tokenizer.ggml.token_type"
    place = model.index(key) + len(key) + 8  # after the name, the type and the type of elements: the length
    path = tmp_path / "model.gguf"
    path.write_bytes(model[:place] + struct.pack("<Q", 1 << 40) + model[place + 8 :])
    with pytest.raises(ForedraftError, match="truncated or no GGUF file"):
        convert_gguf(path, tmp_path / "out")


@pytest.mark.parametrize("name", ["blk.", "blk.3", "blk.x.attn_q.weight", "blk..", ".", "", "output"])
def test_strange_tensor_names(name: str) -> None:
    gguf_to_hf(name)


@pytest.mark.parametrize("seed", range(40))
def test_mutated_head_configs(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    target = {"name": "m", "hidden_size": 8, "num_layers": 2, "vocab_size": 16, "tokenizer": "x"}
    whole = {"format": FORMAT, "kind": "eagle", "target": target, "taps": [1], "num_layers": 1}
    place = rng.choice([whole, target])
    name = rng.choice(list(place))
    place[name] = rng.choice([None, [], {}, "x", -1, 1e300, True, [[]], {"a": 1}])  # type: ignore[index]
    text = json.dumps(whole)
    (tmp_path / CONFIG).write_text(text[: rng.choice([len(text), rng.randrange(len(text))])], encoding="utf-8")
    try:
        read_spec(tmp_path)
    except ForedraftError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("scale", [torch.ones(3), torch.ones(4, 4), torch.tensor(1.0)], ids=["short", "wide", "none"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_heads_with_scales_that_do_not_fit(tmp_path: Path, scale: torch.Tensor, dtype: torch.dtype) -> None:
    save_file({"x": torch.ones((4, 8), dtype=dtype), "x.scale": scale}, tmp_path / WEIGHTS)
    try:
        read_weights(tmp_path)
    except ForedraftError as error:
        assert "head" in str(error)


def test_cut_heads(tmp_path: Path) -> None:
    save_file({"x": torch.ones(4, 8)}, tmp_path / WEIGHTS)
    whole = (tmp_path / WEIGHTS).read_bytes()
    for keep in (0, 4, 8, 20, len(whole) - 1):
        (tmp_path / WEIGHTS).write_bytes(whole[:keep])
        with pytest.raises(ForedraftError):
            read_weights(tmp_path)


def test_one_process_at_a_time_makes_a_folder(tmp_path: Path) -> None:
    """Held here, the lock keeps another process waiting; given back, it goes on."""
    code = "import sys; from pathlib import Path; from foredraft.models.load.folders import locked\n"
    code += "with locked(Path(sys.argv[1])): print('in')"
    with locked(tmp_path / "m"):
        other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "m")], stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(2)
    assert other.communicate(timeout=120)[0] == "in\n"
