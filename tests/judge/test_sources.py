"""Sources of labels: each finds a planted error, all speak one language, and a cut run goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from foredraft.errors import ForedraftError, UsageError
from foredraft.judge.labels.annotations import Note, read_notes, write_notes
from foredraft.judge.problems.checkers import read_task
from foredraft.judge.sources.annotation_page import Annotations, serve_page
from foredraft.judge.sources.answers import AnswerFile, sampled_answers
from foredraft.judge.sources.locate import UNSURE, Verdict, agreement, locate_all, settle, verdicts
from foredraft.judge.sources.monte_carlo import MonteCarlo
from foredraft.judge.sources.program import Program, program_source
from foredraft.judge.sources.stronger_model import StrongerModel, parse, pieces
from foredraft.models import Tokenizer, resolve

WRONG = "2 + 2 = 4. 4 + 3 = 8. So 8."
RIGHT = "2 + 2 = 4. 4 + 3 = 7. So 7."
AT = WRONG.index("8")


def notes(*answers: str) -> list[Note]:
    return [Note({"question": "2 + 2 + 3?", "answer": each}) for each in answers]


def monte_carlo(calls: list[int] | None = None, hard: bool = False) -> MonteCarlo:
    """The target gets everything right from a right beginning, nothing from a wrong one; tokens are characters."""

    def worth(note: Note, beginnings: Sequence[Sequence[int]]) -> list[float]:
        if calls is not None:
            calls.append(len(beginnings))
        return [0.0 if hard else float("8" not in "".join(map(chr, each))) for each in beginnings]

    return MonteCarlo(
        worth, lambda text: [ord(c) for c in text], lambda text, token: token, lambda n: n.answer == RIGHT
    )


def test_the_first_token_after_which_all_is_lost() -> None:
    calls: list[int] = []
    source = monte_carlo(calls)
    wrong, right, early = notes(WRONG, RIGHT, "2 + 2 = 4.")
    assert source.first_wrong(wrong) == Verdict(AT) and len(calls) <= 7  # log2 of the length, and one
    assert source.first_wrong(right) == Verdict(None)
    assert source.first_wrong(early) == Verdict(len(early.answer))  # it stopped too early
    assert monte_carlo(hard=True).first_wrong(wrong) == UNSURE


def test_a_program_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "find.py").write_text(
        "def find(question, answer):\n    if '?' in answer:\n        return False\n"
        "    return answer.find('8') if '8' in answer else None\n"
    )
    source = program_source(f"{tmp_path / 'find.py'}:find")
    said = [verdict for _, verdict in source.locate(notes(WRONG, RIGHT, "What?"))]
    assert said == [Verdict(AT), Verdict(None), UNSURE]
    with pytest.raises(UsageError, match="--program"):
        program_source("nothing.py:find")


def test_a_place_before_the_answer_is_none(tmp_path: Path) -> None:
    """`str.find` says -1 of what is not there, as the file does; any other negative number would spoil the file."""
    path = tmp_path / "answers.jsonl"
    write_notes(path, notes(WRONG, RIGHT, "What?"))
    seen = locate_all(path, Program(lambda q, a: -5 if "?" in a else a.find("8")))
    assert [note.raw["located"]["program"] for note in seen] == [AT, None, "unsure"]
    assert settle(seen, ["program"]) == 2
    write_notes(path, seen)
    assert [note.labelled for note in read_notes(path)] == [True, True, False]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"first_wrong": 9}', Verdict(AT)), ('I think ```{"first_wrong": null}```', Verdict(None)),
        ('{"first_wrong": 99}', UNSURE), ("no idea", UNSURE), ('{"first_wrong": true}', UNSURE), ('{"x": 1}', UNSURE),
    ],
)  # fmt: skip
def test_replies_of_a_stronger_model(reply: str, expected: Verdict) -> None:
    (note,) = notes("2 + 2 = 4. 4 + 3 = 8. So 8.")
    assert pieces(WRONG)[9] == AT
    assert parse(note, reply) == expected


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A chat endpoint that finds the piece with an 8 in it."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body | {"key": self.headers.get("Authorization")})
            shown = body["messages"][0]["content"].partition("Answer:\n")[2]
            found = [part.split("]")[0] for part in shown.split("[")[1:] if "8" in part.split("] ")[1]]
            said = json.dumps({"first_wrong": int(found[0]) if found else None})
            reply = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
    server.shutdown()
    server.server_close()


def test_a_stronger_model_over_an_endpoint(endpoint: tuple[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    url, asked = endpoint
    path = tmp_path / "answers.jsonl"
    write_notes(path, notes(WRONG, RIGHT))
    source = StrongerModel(url, "big", "secret", 2)
    found = locate_all(path, source)
    assert [verdicts(note)["model:big"].first for note in found] == [AT, None]
    assert {each["key"] for each in asked} == {"Bearer secret"} and asked[0]["temperature"] == 0
    assert read_notes(path)[0].raw["located"] == {"model:big": AT}
    assert locate_all(path, source) and len(asked) == 2  # nothing is asked twice
    with pytest.raises(ForedraftError, match="gave no chat completion") as error:
        locate_all(path, StrongerModel("http://127.0.0.1:9/v1", "none"))
    assert "\n" not in str(error.value)


def test_sources_are_compared_and_one_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    write_notes(path, notes(WRONG, RIGHT, WRONG, "What?"))
    locate_all(path, monte_carlo())
    seen = locate_all(path, Program(lambda q, a: False if "?" in a else 0 if "8" in a else None))
    seen[2].mark(AT)  # by hand
    rows = {(row["one"], row["other"]): row for row in agreement(seen)}
    pair = rows["montecarlo", "program"]
    assert pair["lines"] == 3 and pair["same_verdict"] == 1.0 and pair["kappa"] == 1.0
    assert pair["near"] == 0.0 and pair["median_gap"] == AT
    assert rows["hand", "montecarlo"]["near"] == 1.0
    assert settle(seen, ["hand", "program"]) == 3
    assert [note.raw.get("by") for note in seen] == ["program", "program", "hand", None]
    assert [note.first_wrong for note in seen[:3]] == [0, None, AT]
    with pytest.raises(UsageError, match="sources of this file: hand, montecarlo, program"):
        settle(seen, ["oracle"])


def test_a_label_by_hand_outlives_another_trust(tmp_path: Path) -> None:
    """Whoever trusts a program first may think again; a hand that counts tokens names no character."""
    path = tmp_path / "answers.jsonl"
    write_notes(path, notes(WRONG, WRONG))
    seen = locate_all(path, Program(lambda q, a: 0))
    seen[0].mark(AT)
    seen[1].raw |= {"first_wrong": 5, "unit": "token"}
    (pair,) = agreement(seen)
    assert pair["lines"] == 1 and pair["median_gap"] == AT
    assert settle(seen, ["hand", "program"]) == 2
    assert seen[1].by_token and seen[1].first_wrong == 5
    assert settle(seen, ["program"]) == 2 and [note.first_wrong for note in seen] == [0, 0]
    assert settle(seen, ["hand"]) == 1 and seen[0].first_wrong == AT


def test_a_hand_that_thinks_again_is_believed(tmp_path: Path) -> None:
    """A line that was labelled, settled by a program and labelled again keeps the later label."""
    path = tmp_path / "answers.jsonl"
    write_notes(path, notes(WRONG))
    seen = locate_all(path, Program(lambda q, a: 0))
    seen[0].mark(3)
    settle(seen, ["program"])
    write_notes(path, seen)
    page = Annotations(path, Tokenizer.from_folder(resolve("smollm2")))
    page.label(0, None)
    again = read_notes(path)
    assert verdicts(again[0])["hand"] == Verdict(None)
    assert settle(again, ["hand", "program"]) == 1 and again[0].first_wrong is None


def test_answers_are_paired_and_a_cut_run_goes_on(tmp_path: Path) -> None:
    task = tmp_path / "task.jsonl"
    task.write_text("".join(json.dumps({"prompt": f"{i} + 1?", "answer": i + 1}) + "\n" for i in range(4)))
    problems = read_task(task)
    asked: list[int] = []
    drawn: list[int] = []

    def write(prompts: Sequence[list[int]], heat: Sequence[float], seeds: Sequence[int]) -> list[list[int]]:
        asked.append(prompts[0][0])
        drawn.extend(seeds)
        right = prompts[0][0] + 1
        return [[right], [right, 0], [right + 5]][: len(prompts)]

    def made(begin: int) -> Any:
        return sampled_answers(problems[begin:], {"target": write}, (0.0, 0.7, 1.0), lambda q: [int(q[0])],
                               lambda ids: f"{'So ' * (len(ids) - 1)}{ids[0]}")  # fmt: skip

    out = tmp_path / "answers.jsonl"
    first = AnswerFile(out, {"task": "t"})
    figures = first.fill((rows for _, rows in zip(range(2), made(0), strict=False)), 4, lambda *_: None)
    assert figures["questions"] == 2
    again = AnswerFile(out, {"task": "t"})
    assert again.done == 2
    figures = again.fill(made(2), 4, lambda *_: None)
    assert figures == {"answers": 12, "questions": 4, "right": 8, "out": str(out)} and asked == [0, 1, 2, 3]
    cut = drawn.copy()
    drawn.clear()
    list(made(0))
    assert cut == drawn and len(set(drawn)) == 12  # as in a run that was not cut, and no answer shares its luck
    found = read_notes(out)
    assert [note.labelled for note in found[:3]] == [False, True, True] and found[0].raw["reference"] == 1
    with pytest.raises(UsageError, match="begun with another task"):
        AnswerFile(out, {"task": "other"})


def test_the_page_labels_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    write_notes(path, notes(WRONG, RIGHT, "2 + 2"))
    tokenizer = Tokenizer.from_folder(resolve("smollm2"))
    server, address = serve_page(Annotations(path, tokenizer))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def get(where: str) -> Any:
        with urlopen(address + where) as reply:
            return reply.read()

    def post(number: int, token: object) -> int:
        body = json.dumps({"number": number, "token": token}).encode()
        try:
            with urlopen(Request(address + "label", body, {"Content-Type": "application/json"})) as reply:
                return int(reply.status)
        except HTTPError as error:
            return error.code

    try:
        assert b"keydown" in get("")
        item = json.loads(get("item"))
        assert item["number"] == 0 and "".join(item["tokens"]) == WRONG and item["marked"] == "open"
        token = next(i for i, piece in enumerate(item["tokens"]) if "8" in piece)
        assert post(0, token) == 200 and read_notes(path)[0].first_wrong == AT  # on the disk at once
        assert json.loads(get("item"))["number"] == 1 and json.loads(get("item?0"))["marked"] == token
        assert post(1, None) == 200 and post(2, len(json.loads(get("item?2"))["tokens"])) == 200
        assert [note.first_wrong for note in read_notes(path)] == [AT, None, 5]
        assert json.loads(get("item"))["end"] and post(0, 999) == 400 and post(77, 0) == 400 and post(0, "x") == 400
        with pytest.raises(HTTPError):
            urlopen(address.rsplit("/", 2)[0] + "/")  # nobody without the word gets in
    finally:
        server.shutdown()
        server.server_close()
