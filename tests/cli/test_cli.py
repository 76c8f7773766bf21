"""The command line as a person or a script meets it: documents, exit codes, one-line errors."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.cli.app import run


def call(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, str]:
    code = run([str(a) for a in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def one_line(err: str) -> bool:
    return err.startswith("foredraft: ") and err.count("\n") == 1 and "Traceback" not in err


def test_json_is_the_only_output(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(
        capsys, "generate", "one two", "three", "--model", tiny, "-n", "9", "--json", "--batch-size", "2"
    )
    assert code == 0
    assert out.count("\n") == 1
    document = json.loads(out)
    assert document["model"] == str(tiny)
    assert document["method"] == "auto"
    assert [r["prompt"] for r in document["results"]] == ["one two", "three"]
    for row in document["results"]:
        assert set(row) >= {"text", "token_ids", "finish_reason", "stats"}
        assert len(row["token_ids"]) == row["stats"]["emitted"] <= 9
        assert set(row["stats"]) >= {"steps", "drafted", "accepted", "seconds"}


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "suffix", "draft-model"])
@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_methods_write_the_same_text(
    tiny: Path, capsys: pytest.CaptureFixture[str], method: str, temperature: str
) -> None:
    """Greedy everywhere; sampled for the seed-stable rule."""

    def text(*more: str) -> Any:
        sampling = ("-t", temperature, "--seed", "3", "--rule", "sample-and-match", "--dtype", "fp32")
        code, out, err = call(
            capsys, "generate", "a b c a b", "--raw", "--model", tiny, "-n", "20", "--json", *sampling, *more
        )
        assert code == 0, err
        return json.loads(out)["results"][0]["token_ids"]

    assert text("--method", method) == text("--method", "plain")


def test_keys_and_values_are_chosen_on_cuda_alone(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("generate", "one two", "--model", tiny, "-n", "4", "--device", "cpu")
    for more in (("--kv-cache-dtype", "fp8"), ("--kv-cache-memory-bytes", "1G")):
        code, _, err = call(capsys, *argv, *more)
        assert code == 2 and one_line(err) and "CUDA alone" in err
    code, _, err = call(capsys, "chat", *argv[2:], "--kv-cache-dtype", "fp8")
    assert code == 2 and one_line(err) and "CUDA alone" in err
    code, _, err = call(capsys, *argv, "--kv-cache-dtype", "fp9")
    assert code == 2 and one_line(err) and "did you mean 'fp8'" in err


def test_parts_are_spelled_on_the_command_line(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ids(*more: str) -> Any:
        argv = ("generate", "a b c a b", "--raw", "--model", tiny, "-n", "12", "--json", "--dtype", "fp32", *more)
        code, out, err = call(capsys, *argv)
        assert code == 0, err
        return json.loads(out)["results"][0]["token_ids"]

    plain = ids("--method", "plain")
    model = ("--method", "draft-model", "--drafter", "layers:1")
    assert ids(*model, "--shape", "eagle2:nodes=8,width=3,depth=3") == plain
    assert ids(*model, "--stop", "confidence:0.4", "--length", "heuristic:first=2") == plain
    assert ids("--method", "draft-model:drafter=layers:1,shape=static:2x2,length=3") == plain
    text = call(capsys, "generate", "a b c a b", "--raw", "--model", tiny, "-n", "12", "--json", "--dtype", "fp32")[1]
    word = json.loads(text)["results"][0]["text"][2:6]  # a string of the answer itself
    for flag in ("--stop", "--stop-string"):
        assert len(ids(flag, word)) <= len(plain)


def test_prompts_from_file_and_pipe(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first\n\nsecond\n", encoding="utf-8")
    code, out, _ = call(capsys, "generate", "--file", file, "--model", tiny, "-n", "2", "--json")
    assert code == 0
    assert [r["prompt"] for r in json.loads(out)["results"]] == ["first", "second"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
    code, out, _ = call(capsys, "generate", "--model", tiny, "-n", "2", "--json")
    assert [r["prompt"] for r in json.loads(out)["results"]] == ["from a pipe"]


def test_streamed_text_and_figures(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "generate", "hello", "--model", tiny, "-n", "5")
    assert code == 0
    assert out
    assert "5 tokens, " in err


def test_a_folder_that_cannot_be_made_costs_one_line(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "words.txt"
    file.write_text("one two three\n")
    code, _, err = call(capsys, "store", "build", file, "--out", file / "store", "--model", tiny)
    assert code == 1 and one_line(err) and f"{file}" in err and "Not a directory" in err


def test_logprobs(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "generate", "hello", "--model", tiny, "-n", "3", "--json", "--logprobs", "2")
    row = json.loads(out)["results"][0]
    assert len(row["logprobs"]) == 3
    assert all(str(t) in entry for t, entry in zip(row["token_ids"], row["logprobs"], strict=True))


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("--model", "smolm2"), "did you mean 'smollm2'"),
        (("--method", "sufix"), "did you mean 'suffix'"),
        (("--rule", "residul"), "did you mean 'residual'"),
        (("--temprature", "1"), "did you mean --temperature"),
        (("--dtype", "bf17"), "did you mean 'bf16'"),
        (("--shape", "chian"), "did you mean 'chain'"),
        (("-n", "0"), "max_new_tokens must be at least 1"),
        (("-n", "-3"), "max_new_tokens must be at least 1"),
        (("-n", "many"), "'--max-new-tokens'"),
        (("--max-length", "0"), "'--max-length'"),
        (("--max-length", "-5"), "'--max-length'"),
        (("--logprobs", "2"), "goes with --json"),
        (("--batch-size", "0"), "batch size must be at least 1"),
        (("--draft-length", "0"), "draft_length must be at least 1"),
        (("--length", "0"), "draft_length must be at least 1"),
        (("--length", "expcted"), "or a rule (fixed, heuristic, expected"),
        (("--method", "suffix", "--stop", "entropy"), "no draft chain"),
        (("--stop", "confidence=0.4"), "write confidence:0.4, or --stop-string"),
        (("--stop", "entropi:1.2"), "write entropy:1.2"),
        (("--method", "ngram"), "did you mean 'prompt-lookup'"),
        (("--method", "PLAIN"), "did you mean 'plain'"),
        (("--device", "gpu"), "did you mean 'cuda'"),
        (("--device", "meta"), "known: cpu, cuda"),
        (("--assistant-model", "x"), "did you mean --drafter"),
        (("--model", ""), "name is empty"),
        (("--model", "gpt2"), "a hub id is spelled OWNER/NAME"),
        (("--method", "suffix:shape=tree", "--shape", "chain"), "shape is given twice"),
        (("--shape", "eagle2:nods=3"), "did you mean 'nodes'? (known: nodes, width, depth)"),
        (("--words", "0"), "words must be at least 1"),
        (("--temperature", "-1"), "temperature must be"),
        (("--top-p", "1.5"), "top_p must lie in"),
        (("--drafter", "x"), "holds no trained head"),
        (("--rule", "chain"), "use rule 'sample-and-match'"),
        (("--file", "no-such-file"), "cannot read no-such-file"),
        (("--model", "./no-such-folder"), "does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage(argv: tuple[str, ...], hint: str, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = argv if "--model" in argv else ("--model", str(tiny), *argv)
    code, out, err = call(capsys, "generate", "hello", *given)
    assert code == 2, err
    assert out == ""
    assert one_line(err)
    assert hint in err


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("generat",), "'generat'; did you mean generate?"),
        (("train",), "Missing argument 'kinds'; see 'foredraft train --help'"),
        (("export", "eagle3"), "Missing option '--to'"),
        (("store",), "name one of build, add, embed, info"),
        (("images",), "name one of data, train, compare"),
        (("train", "draft-and-verify", "--steps", "0"), "Invalid value for '--steps'"),
        (("data", "--row", "0"), "Invalid value for '--row'"),
        (("images", "compare", "--timed", "0"), "Invalid value for '--timed'"),
        (("demo", "--rounds", "0"), "Invalid value for '--rounds'"),
        (("serve", "--max-length", "0"), "Invalid value for '--max-length'"),
        (("serve", "--port", "http"), "Invalid value for '--port'"),
        (("serve", "--served-model-name", "x"), "did you mean --name?"),
        (("judge", "eval", "--task", "nosuch"), "unknown task 'nosuch'"),
        (("methods", "zzzzzzzz"), "chain, confidence"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_command(argv: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *argv)
    assert code == 2 and out == ""
    assert one_line(err)
    assert hint in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_a_device_that_is_not_there(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--device", "--draft-device"):
        code, _, err = call(capsys, "generate", "a", "--model", tiny, "--method", "draft-model", option, "cuda:1")
        assert code == 1 and one_line(err) and "use cpu" in err


def test_lossy_rules_are_named(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("generate", "a b a", "--raw", "--model", tiny, "-n", "4", "--method", "suffix")
    assert "lossy" not in call(capsys, *argv)[2]
    assert call(capsys, *argv, "--rule", "typical")[2].endswith(", lossy]\n")


def test_bad_prompts(tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = call(capsys, "generate", "", "--model", tiny)
    assert code == 2
    assert one_line(err)
    assert "empty" in err
    code, _, err = call(capsys, "generate", "word " * 400, "--model", tiny)
    assert code == 2
    assert one_line(err)
    assert "context holds 128" in err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    code, _, err = call(capsys, "generate", "--model", tiny)
    assert code == 2
    assert one_line(err)
    assert "not valid UTF-8" in err


def test_a_drafter_of_another_tokenizer(tiny: Path, stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("generate", "hello", "--model", tiny, "-n", "3", "--method")
    code, _, err = call(capsys, *argv, "relay", "--drafter", stranger)
    assert code == 2
    assert one_line(err)
    assert "another tokenizer" in err
    for drafter in (tiny, stranger):  # this one translates
        assert call(capsys, *argv, "draft-model", "--drafter", drafter)[0] == 0


def test_damaged_weights(poisoned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "generate", "hello", "--model", poisoned)
    assert code == 1
    assert one_line(err.removeprefix("\n"))
    assert "NaN" in err
    file = poisoned / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    code, _, err = call(capsys, "generate", "hello", "--model", poisoned)
    assert code == 1
    assert one_line(err)


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "methods", "--json")
    assert code == 0
    table = json.loads(out)
    assert {"plain", "prompt-lookup", "suffix", "draft-model"} <= {row["name"] for row in table["methods"]}
    assert all(row["exact"] in (True, False) for row in table["methods"])
    code, out, _ = call(capsys, "models", "--json")
    assert {"smollm2", "tinyllama", "stories15m", "judge-demo", "qwen-coder", "lantern-demo"} == {
        row["name"] for row in json.loads(out)["models"]
    }
    assert call(capsys, "methods")[0] == call(capsys, "models")[0] == 0


def test_all_that_can_be_spelled_is_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = json.loads(call(capsys, "methods", "--json")[1])
    assert set(table) == {"methods", "rules", "shapes", "stops", "lengths"}
    old = {"name", "title", "paper", "parts", "shapes", "exact", "claim", "weights"}
    assert all(old < set(row) and row["summary"] for row in table["methods"])
    eagle2 = next(row for row in table["shapes"] if row["name"] == "eagle2")
    assert eagle2["parameters"] == {"nodes": 32, "width": 8, "depth": 0} and eagle2["aliases"] == ["value-tree"]
    shown = [call(capsys, "methods", *flag)[1] for flag in ((), *((f"--{section}",) for section in list(table)[1:]))]
    assert all(len(line) <= 80 for text in shown for line in text.splitlines())
    assert all(row["name"] in shown[0] for rows in table.values() for row in rows)


def test_cards(capsys: pytest.CaptureFixture[str]) -> None:
    for row in json.loads(call(capsys, "methods", "--json")[1])["methods"]:
        code, out, _ = call(capsys, "methods", row["name"])
        kind = "exact" if row["exact"] else "lossy"
        assert code == 0 and out.startswith(f"method {row['name']} ({kind}): {row['title']}")
        assert all(len(line) <= 80 for line in out.splitlines())
    assert "lenience=2.0" in call(capsys, "methods", "cascade")[1]
    assert "was called value-tree" in call(capsys, "methods", "value-tree")[1]
    assert list(json.loads(call(capsys, "methods", "eagle2", "--json")[1])) == ["methods", "shapes"]
    code, _, err = call(capsys, "methods", "eagle9")
    assert code == 2 and one_line(err) and "did you mean" in err


def test_tuned_models_are_listed_with_what_they_lack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def row() -> dict[str, Any]:
        models = json.loads(call(capsys, "models", "--json")[1])["models"]
        return next(row for row in models if row["name"] == "judge-demo")

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FOREDRAFT_WEIGHTS", str(tmp_path))
    (tmp_path / "judge-demo" / "target").mkdir(parents=True)  # as a training leaves it that has only begun
    assert not row()["installed"] and not row()["cached"]
    assert "foredraft judge pair" in row()["missing"]
    shown = call(capsys, "models")[1]
    assert "not installed" in shown and "judge-demo is not trained yet; train it" in shown
    (tmp_path / "judge-demo" / "target" / "config.json").write_text("{}")
    assert row()["installed"] and row()["missing"] is None
    assert "not installed" not in call(capsys, "models")[1]


def test_interrupt_while_streaming(tiny: Path, tmp_path: Path) -> None:
    """Ctrl-C stops a real process, in the middle of an answer, with one line and exit code 1."""
    folder = shutil.copytree(tiny, tmp_path / "long")
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 50_000}
    (folder / "config.json").write_text(json.dumps(config))
    argv = [sys.executable, "-m", "foredraft", "generate", "Tell me a long story.", "-n", "40000", "--ignore-eos"]
    argv += ["--model", str(folder), "--dtype", "fp32"]
    # Whoever runs the tests in the background may have had interrupts ignored, which children inherit.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    quiet = os.environ | {"FOREDRAFT_NATIVE": "0"}  # else a machine without bf16 products says so in a line of its own
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed, env=quiet)
    assert process.stdout is not None
    assert process.stdout.read(20)  # it has begun to write
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert one_line(err.decode())
    assert "interrupted after" in err.decode()


def test_conversation_in_the_terminal(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "hello\n/stats\n/clear\n/help\nagain\n/quit\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    code, out, _ = call(capsys, "chat", "--model", tiny, "-n", "4", "--max-length", "128")
    assert code == 0
    assert "tokens/s" in out
    assert "/clear" in out


def test_a_store_is_built_used_and_refused(
    tiny: Path, stranger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From files to drafts: the store repeats what the tiny model writes, so that it is drafted."""
    sampling = ("--raw", "--model", tiny, "-n", "24", "--json", "--dtype", "fp32")
    _, out, _ = call(capsys, "generate", "a b c a b", *sampling, "--method", "plain")
    plain = json.loads(out)["results"][0]
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("a b c a b" + plain["text"], encoding="utf-8")
    (texts / "again.txt").write_text("a b c a b" + plain["text"], encoding="utf-8")
    (texts / "b.jsonl").write_text('{"messages": [{"role": "user", "content": "one"}]}\n{"text": "two"}\n')
    (texts / "c.py").write_bytes(b"\xff\xfe no text")
    store = tmp_path / "store"
    code, _, err = call(capsys, "store", "build", tmp_path / "text", "--out", store, "--model", tiny)
    assert code == 2 and one_line(err) and not store.exists()
    code, out, err = call(capsys, "store", "build", texts, "--out", store, "--model", tiny, "--json")
    assert code == 0, err
    about = json.loads(out)
    assert about["documents"] == 3 and about["added"]["repeated"] == about["added"]["unreadable"] == 1
    assert about["bytes_per_token"] == 6.0
    (tmp_path / "more.md").write_text("three four five")
    code, out, _ = call(capsys, "store", "add", store, tmp_path / "more.md", "--model", tiny)
    assert code == 0 and "added 1 documents" in out
    assert call(capsys, "store", "info", store, "--verify")[0] == 0
    code, out, _ = call(capsys, "generate", "a b c a b", *sampling, "--method", "rest", "--store", store)
    found = json.loads(out)["results"][0]
    assert code == 0 and found["token_ids"] == plain["token_ids"]
    wrong = (
        ("generate", "hi", "--model", tiny, "--method", "rest"),
        ("generate", "hi", "--model", tiny, "--method", "suffix", "--store", store),
        ("generate", "hi", "--model", stranger, "--method", "rest", "--store", store),
        ("store", "add", store, tmp_path / "more.md", "--model", stranger),
        ("store", "build", tmp_path / "nothing", "--out", tmp_path / "s", "--model", tiny),
        ("store", "info", tmp_path),
    )
    for command in wrong:
        code, _, err = call(capsys, *command)
        assert code == 2 and one_line(err), (command, err)
    next(store.glob("*.ids")).write_bytes(b"xx")
    code, _, err = call(capsys, "store", "info", store)
    assert code == 1 and one_line(err) and "damaged" in err
