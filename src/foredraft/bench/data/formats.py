"""From the rows of a published file to questions: one short function for each form that files have.

A format knows field names and how the question is put to the model; it knows no paths.
"""

from __future__ import annotations

import re

from .files import DataFile, Row
from .questions import Question

LETTERS = "ABCDEFGH"
CHOOSE = "Answer with the letter of the right choice."
TEXT_CHARACTERS, TEXT_PIECES = 1200, 80
LONG_PIECES = 8
LONG_QUESTION = "What is the last part of this text about? Answer in a few sentences."
MBPP_TEST, MBPP_TRAIN = range(11, 511), range(601, 975)
# Spec-Bench carries MT-Bench's own eight categories in place of one name for the task.
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def turns(file: DataFile, task: str, *categories: str) -> list[Question]:
    """FastChat's form: question_id, category, turns, and a reference where there is one."""
    found = []
    for row in file.rows():
        if not categories or row["category"] in categories:
            answer = _final_number(row)
            scorer = "number" if answer else ""
            found.append(Question(task, str(row["question_id"]), tuple(row["turns"]), scorer=scorer, reference=answer))
    return found


def own(file: DataFile, task: str) -> list[Question]:
    """The prompt set inside the package: fields named as in `Question`."""
    return [
        Question(task, row["id"], tuple(row["turns"]), scorer=row.get("scorer", ""), reference=row.get("reference", ""))
        for row in file.rows()
        if row["task"] == task
    ]


def gsm8k(file: DataFile, task: str) -> list[Question]:
    """question and answer, whose last line is `#### number`."""
    ask = "{}\nWork it out step by step, then write the result as 'The answer is' and the number."
    found = []
    for i, row in enumerate(file.rows()):
        answer = _after_hashes(row["answer"])
        if not answer:
            raise ValueError(f"the answer of row {i + 1} does not end in '#### number'")
        found.append(Question(task, str(i), (ask.format(row["question"]),), scorer="number", reference=answer))
    return found


def humaneval(file: DataFile, task: str) -> list[Question]:
    """A function's head with its docstring, and a `check` to call with the function."""
    ask = "Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{}\n```"
    return [
        Question(
            task,
            row["task_id"].rpartition("/")[2],
            (ask.format(row["prompt"].rstrip()),),
            scorer="code",
            reference=f"{row['test']}\ncheck({row['entry_point']})\n",
            stem=row["prompt"],
        )
        for row in file.rows()
    ]


def mbpp(file: DataFile, task: str, split: range = MBPP_TEST) -> list[Question]:
    """A sentence and asserts; one file has all splits, told apart by the number of a question."""
    ask = "{}\nAnswer with Python code in one code block. It has to pass this test:\n\n```python\n{}\n```"
    return [
        Question(
            task,
            str(row["task_id"]),
            (ask.format(row["text"], row["test_list"][0]),),
            scorer="code",
            reference="\n".join([row["test_setup_code"], *row["test_list"]]),
        )
        for row in file.rows()
        if int(row["task_id"]) in split
    ]


def mmlu(file: DataFile, task: str) -> list[Question]:
    """question, four choices and the letter of the right one."""
    rows = enumerate(file.rows())
    return [_choice(task, str(i), row["question"], row["choices"], row["answer"]) for i, row in rows]


def instructions(file: DataFile, task: str) -> list[Question]:
    """Choices written into the instruction (`Answer1: ... Answer2: ...`, or true/false), the right one by name."""
    found = []
    for i, row in enumerate(file.rows()):
        text = row["instruction"].partition("\n\nAnswer format:")[0].partition("question: ")[2]
        question, *choices = re.split(r"\s*\bAnswer\d: ", text)
        names = [f"answer{n + 1}" for n in range(len(choices))] if choices else ["true", "false"]
        right = LETTERS[names.index(row["answer"])]
        found.append(_choice(task, str(i), question, choices or names, right))
    return found


def tool_calls(file: DataFile, task: str) -> list[Question]:
    """Conversations with functions: what the functions are, and what the user says until a function is called.

    The same instructions come before every question, and functions come back, as in the work of an agent.
    """
    ask = (
        'You can call these functions. Answer with one line of JSON, {{"name": .., "arguments": ..}}, for the '
        "function that helps, or in words if none does.\n\n{}\n\n{}"
    )
    found = []
    for i, row in enumerate(file.rows()):
        said = [each["value"] for each in row["conversations"] if each["from"] == "human"]
        if row["tools"] and row["tools"] != "[]" and said:
            found.append(Question(task, str(i), (ask.format(row["tools"], said[0]), *said[1:2])))
    return found


def continuation(file: DataFile, task: str) -> list[Question]:
    """Pieces of a long text, spread over it, to be written on; each begins at a paragraph."""
    paragraphs = [p for p in file.text.split("\n\n") if p.strip()] if "\n\n" in file.text else file.text.split("\n")
    found: list[Question] = []
    for k in range(TEXT_PIECES):
        begin = k * len(paragraphs) // TEXT_PIECES
        piece = "\n\n".join(paragraphs[begin : begin + TEXT_CHARACTERS])[:TEXT_CHARACTERS].strip()
        cut = piece.rpartition(" ")[0] if len(piece) == TEXT_CHARACTERS else piece
        if cut:
            found.append(Question(task, str(k), (cut,), raw=True))
    return found


def long_reading(file: DataFile, task: str, characters: int) -> list[Question]:
    """A question about the last of `characters` of a long text. Pieces of all sizes end at the same places, so that
    tasks of several sizes ask the same and differ in what stands before it."""
    ends = [(k + 1) * len(file.text) // LONG_PIECES for k in range(LONG_PIECES)]
    found = [(k, file.text[max(0, end - characters) : end].strip()) for k, end in enumerate(ends)]
    return [
        Question(task, str(k), (f"{piece}\n\n{LONG_QUESTION}",)) for k, piece in found if len(piece) > characters // 2
    ]


def _choice(task: str, name: str, question: str, choices: list[str], right: str) -> Question:
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    text = "\n".join([question.strip(), *lines, CHOOSE])
    return Question(task, name, (text,), scorer="letter", reference=right)


def _final_number(row: Row) -> str:
    """The number after `####` in a one-turn row's reference; "" = it has none."""
    reference = row.get("reference") or [""]
    return _after_hashes(str(reference[0])) if len(row["turns"]) == 1 else ""


def _after_hashes(answer: str) -> str:
    """The number there, as scorers compare it; "" = there is none."""
    number = answer.rpartition("####")[2].strip().replace(",", "") if "####" in answer else ""
    return number if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)", number) else ""
