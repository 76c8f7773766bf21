"""Data, codec, classifier and training of the visual demo: files, resuming, the codebook, and the front door."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft.bench.visual.frechet import frechet
from foredraft.cli.app import run
from foredraft.errors import ForedraftError, UsageError
from foredraft.models.visual import Codec, load_codec, read_codebook, save_codec
from foredraft.models.visual.pictures import as_text, sheet, write_png
from foredraft.train.visual.codec_trainer import CodecTrainer
from foredraft.train.visual.dataset import load_images
from foredraft.train.visual.visual_pipeline import train_visual

from .conftest import small_order, write_images


def test_parts_that_are_there_are_kept(weights: Path) -> None:
    folder = weights / "lantern-demo"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors") if path.parent.name != "codec"}
    cards = train_visual(small_order(weights / "images.npz", folder))
    assert set(cards) == {"codec", "classifier", "model", "eagle"} and before
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_codebook_follows_what_it_stands_for(tmp_path: Path) -> None:
    """The loss falls, idle codes come into use, and what was saved decodes as before within 8 bits."""
    torch.manual_seed(0)
    images = load_images(write_images(tmp_path / "images.npz"), torch.device("cpu"))
    trainer = CodecTrainer(Codec(32, 4, 16), images, rows=16, lr=1e-2)
    trainer.train_step(0, 0.1)
    trainer.evaluate()
    first = trainer.found
    for step in range(1, 41):
        trainer.train_step(step, 0.1)
    trainer.evaluate()
    assert trainer.found["psnr"] > first["psnr"] + 5 and trainer.found["used"] > 2 * first["used"]
    save_codec(tmp_path, trainer.codec.decoder)
    codes = torch.randint(32, (2, 49))
    again, now = load_codec(tmp_path).images(codes), trainer.codec.decoder.images(codes)
    assert (again - now).abs().max() < 0.05 and again.shape == (2, 28, 28)
    with pytest.raises(UsageError, match="no square"):
        trainer.codec.decoder.images(codes[:, :48])


def test_codebook_files(tmp_path: Path) -> None:
    book = torch.randn(6, 3)
    torch.save({"quantize.embedding.weight": book, "decoder.weight": torch.zeros(2, 2)}, tmp_path / "vq.pt")
    np.savez(tmp_path / "two.npz", a=np.zeros((2, 2)), b=np.zeros((2, 2)))
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    assert torch.equal(read_codebook(tmp_path / "vq.pt"), book)
    with pytest.raises(UsageError, match="2 matrices"):
        read_codebook(tmp_path / "two.npz")
    with pytest.raises(ForedraftError, match="cannot be read"):
        read_codebook(tmp_path / "bad.safetensors")


def test_the_distance_of_known_distributions() -> None:
    """In one dimension (m - m')^2 + (s - s')^2; nothing is away from itself."""
    one, two = torch.tensor([1.0]).double(), torch.tensor([4.0]).double()
    assert frechet(one, torch.eye(1).double(), two, 9 * torch.eye(1).double()) == pytest.approx(9 + 4)
    spread = torch.cov(torch.randn(5, 40).double())
    assert frechet(torch.ones(5).double(), spread, torch.ones(5).double(), spread) == pytest.approx(0, abs=1e-9)


def test_pictures(tmp_path: Path) -> None:
    images = torch.linspace(0, 1, 2 * 28 * 28).view(2, 28, 28)
    grey = sheet([images, images[:1]], gap=2, scale=2)
    assert grey.shape == (2 * (2 * 30 + 2), 2 * (2 * 30 + 2))
    write_png(tmp_path / "a.png", grey)
    data = (tmp_path / "a.png").read_bytes()
    begin = data.index(b"IDAT") + 4
    lines = zlib.decompress(data[begin : data.index(b"IEND") - 8])
    assert data.startswith(b"\x89PNG") and len(lines) == grey.shape[0] * (grey.shape[1] + 1)
    assert bytes(grey[5].tolist()) == lines[5 * (grey.shape[1] + 1) + 1 : 6 * (grey.shape[1] + 1)]
    assert len(as_text(images[1]).split("\n")) == 14


def test_the_front_door(weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["generate", "--model", "lantern-demo", "--method", "lantern", "-t", "1", "--seed", "1", "--dtype", "fp32"]
    assert run([*ask, "bag", "coat", "--picture", str(tmp_path / "two.png")]) == 0
    out = capsys.readouterr()
    assert out.out.count(">>>") == 2 and (tmp_path / "two.png").exists() and "49 tokens" in out.err
    assert run([*ask, "bag", "--json", "--picture", str(tmp_path / "one.png")]) == 0
    assert json.loads(capsys.readouterr().out)["results"] and (tmp_path / "one.png").exists()
    assert run([*ask, "zebra"]) == 2 and "zebra" in capsys.readouterr().err
    capsys.readouterr()
    compare = ["images", "compare", "--images", "20", "--timed", "1", "--methods", "plain lantern alone", "--json"]
    assert run([*compare, "--dtype", "fp32", "--device", "cpu", "--out", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["method"] for row in rows] == ["plain", "lantern", "alone"]
    assert rows[0]["tokens_per_pass"] == 1 and rows[2]["tokens_per_pass"] > 20 and not rows[1]["exact"]
    assert (tmp_path / "sheet.png").exists() and "Provenance" in (tmp_path / "results.md").read_text(encoding="utf-8")
