"""Final answers, and the sandbox that runs what a model wrote."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from foredraft.bench.data.questions import Question
from foredraft.bench.scoring.sandbox import JAIL, MOST_BYTES, _end, _listen, passes
from foredraft.bench.scoring.scorers import score, score_all

from .made import record


def asked(scorer: str, reference: str, stem: str = "") -> Question:
    return Question("t", "1", ("?",), scorer=scorer, reference=reference, stem=stem)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2 + 2 = 4, so the answer is 1,200.", "1200"),
        ("#### 18", "18"),
        ("First 3, then 7.5 apples", "7.5"),
        ("The answer is $-5", "-5"),
        ("The answer is 6. Check: 2 * 3", "6"),
        ("The answer is 1234567", "1234567"),  # not that of 1234568
        ("\u0130\u0130\u0130 The Answer is 42, not 7", "42"),  # letters that are longer in lower case
        ("none", None),
    ],
)
def test_numbers(text: str, answer: str | None) -> None:
    marked = score(asked("number", "1200"), text)
    assert marked.answer == answer
    assert marked.correct == (answer == "1200")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("B", "B"),
        ("B. fire", "B"),
        ("The answer is (C).", "C"),
        ("the correct choice is D", "D"),
        ("**A**", "A"),
        ("A dog is not it; the answer is B", "B"),
        ("A is wrong. The answer is: B", "B"),
        ("The answer is a matter of taste, the choice is **(c)**", "C"),
        ("I cannot say", None),
    ],
)
def test_letters(text: str, answer: str | None) -> None:
    assert score(asked("letter", "B"), text).answer == answer


def test_code_is_taken_out_of_its_block() -> None:
    question = asked("code", "assert twice(2) == 4")
    right = "Sure!\n```python\ndef twice(x):\n    return 2 * x\n```\nIt doubles."
    assert score(question, right).correct
    assert score(question, "def twice(x):\n    return 2 * x").correct
    assert not score(question, right.replace("2 * x", "x")).correct
    assert not score(question, "I would write a loop.").correct
    assert score(question, "```python\ndef twice(x):\n    return 2 * x").correct  # cut off before its end


def test_imports_of_the_stem_are_kept() -> None:
    question = asked("code", "assert f([1]) == 1", "from typing import List\n\ndef f(x: List[int]) -> int:\n")
    assert score(question, "```python\ndef f(x: List[int]) -> int:\n    return x[0]\n```").correct


def test_helpers_of_the_stem_are_kept() -> None:
    stem = 'import math\n\ndef half(x):\n    return x / 2\n\ndef f(x):\n    """The root of half."""\n'
    question = asked("code", "assert f(8) == 2", stem)
    assert score(question, "```python\ndef f(x):\n    return math.sqrt(half(x))\n```").correct
    assert score(question, "    return math.sqrt(half(x))\n").correct
    assert not score(question, "```python\ndef g(x):\n    return 2\n```").correct  # the asked one is not written


@pytest.mark.parametrize("program", ["assert True", "import math\nassert math.pi > 3", "print('x' * 10)"])
def test_good_programs_pass(program: str) -> None:
    assert passes(program)


@pytest.mark.parametrize(
    "program",
    [
        "assert False",
        "raise SystemExit",
        "import os\nos._exit(0)",
        "import socket\nsocket.socket()",
        "open('left-behind', 'w')",
        "import os\nos.remove('/nonexistent')",
        "import os\nos.system('true')",
        "import subprocess\nsubprocess.run(['true'])",
        "import ctypes\nctypes.CDLL(None)",
        "x = bytearray(2 << 30)",
        "(",
    ],
)
def test_bad_programs_fail(program: str) -> None:
    assert not passes(program)


def test_endless_programs_are_ended() -> None:
    assert not passes("while True: pass", seconds=1)
    assert not passes("import time\ntime.sleep(60)", seconds=1)


def test_nothing_is_marked_twice(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    question = asked("number", "4")
    records = [record("plain", [1], text="4"), record("judge", [1], text="5")]
    first = score_all(records, [question], path)
    assert [mark.correct for mark in first.values()] == [True, False]
    path.write_text(path.read_text() + '["t", "1", 0')  # a kill in the middle of a line
    reported: list[int] = []
    assert score_all(records, [question], path, lambda: reported.append(1)) == first
    assert not reported


FORK_EXEC = """
import _posixsubprocess, os
r, w = os.pipe()
pid = _posixsubprocess.fork_exec([b"/bin/true"], [b"/bin/true"], True, (w,), None, None,
                                 -1, -1, -1, -1, -1, -1, r, w, False, False, -1, None, None, None, -1, None, False)
"""  # Python tells no audit hook of it
REFUSED = """
except OSError as error:
    assert error.errno in (1, 11)  # EPERM of the filter, EAGAIN of the limit
else:
    raise SystemExit(1)
"""


@pytest.mark.parametrize("machine", ["this one", "another"], ids=["filter of calls", "number of processes"])
def test_the_kernel_lets_no_process_begin_in_the_jail(machine: str) -> None:
    """Where there is no filter of calls, their number is limited to none. A session leader cannot begin another
    session either, so without children there is no way out of the group that is ended."""
    given = "import runpy, sys, platform, _posixsubprocess\nsys.argv = ['jail', 'done', '5', '512']\n"
    given += "" if machine == "this one" else "platform.machine = lambda: 'another'\n"
    given += f"runpy.run_path({str(JAIL)!r})"
    program = "try:\n" + "\n".join(f"    {line}" for line in FORK_EXEC.strip().splitlines()) + REFUSED
    done = subprocess.run([sys.executable, "-c", given], input=program.encode(), capture_output=True, timeout=60)
    assert done.stdout == b"done", done.stderr
    outside = subprocess.run([sys.executable, "-c", FORK_EXEC], check=False, timeout=60)
    assert outside.returncode == 0  # else the lines above would say nothing


@pytest.mark.parametrize(
    "program", ["import os\nos.posix_spawn('/bin/true', ['true'], {})", "import os\nos.fork()"], ids=["spawn", "fork"]
)
def test_python_itself_refuses_processes_in_the_jail(program: str) -> None:
    body = "\n".join(f"    {line}" for line in program.splitlines())
    assert passes(f"try:\n{body}\nexcept PermissionError as error:\n    assert 'not allowed here' in str(error)")


def test_children_of_the_jail_end_with_it() -> None:
    """Whoever began before the filter, or without one, is in the same group and is ended with it."""
    jail = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 300 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert jail.stdout is not None
    child = int(jail.stdout.readline())
    _end(jail)
    for _ in range(1000):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    raise AssertionError("the child still runs")


def test_threads_may_run_in_the_jail() -> None:
    assert passes("import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()")


def test_a_flood_of_output_is_not_heard() -> None:
    """1.5 GB on whatever descriptor leads out: a page of it is heard, and the program is ended."""
    flood = "import os, sys\nfor fd in range(1, 32):\n    try:\n"
    flood += "        while True:\n            os.write(fd, b'x' * 1_000_000)\n    except OSError:\n        pass"
    began = time.monotonic()
    assert not passes(flood, seconds=30)
    assert time.monotonic() - began < 25  # not its limit of time: the flood was cut off
    writer = subprocess.Popen([sys.executable, "-c", flood], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert len(_listen(writer, 30)) < 2 * MOST_BYTES
    finally:
        _end(writer)
