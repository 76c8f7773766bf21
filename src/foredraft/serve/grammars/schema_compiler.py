"""Compiles JSON schemas for one tokenizer with llguidance. As a script, tries them where they can do no harm.

The script reads a tokenizer and then schemas from standard input, a line of JSON each, and answers every schema with a
line: whether it compiles within little processor time and memory. Each is tried in a forked process of its own, which
the system ends when it takes more. Run by path, so it imports nothing of foredraft.
"""

import json
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# Between the parts of a document: nothing, a space, or a new line with an indent. Without an end to it, a small model
# may write white space for ever.
WHITE_SPACE = r"( |\n {0,16})?"
NICE = 10  # whoever writes answers comes first
USUAL_SECONDS = 0.3  # of the clock: what takes longer gets the processor only while nobody else wants it
WALL_FACTOR = 5  # seconds of the clock that a second of processor time may take on a busy machine
# Work of one row's mask, on the engine's thread: about 7 ms of lexing, 3 ms of parsing. States take 1 to 2 kB each.
MASK_LIMITS = LLParserLimits(step_lexer_fuel=100_000, max_lexer_states=50_000, verbose_errors=False)


def load_tokens(tokenizer: str, vocab_size: int, eos_ids: list[int]) -> LLTokenizer:
    """The tokenizer (the text of tokenizer.json) as llguidance reads it; takes a second."""
    return LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=eos_ids)


def compile_schema(tokens: LLTokenizer, schema: str) -> LLMatcher:
    """A matcher at the beginning of a document; ValueError says what is wrong with the schema.

    A line `regex` or `lark` before the text says that it is an expression or a grammar, not a JSON schema.
    """
    kind, found, text = schema.partition("\n")
    if found and kind == "regex":
        grammar = LLMatcher.grammar_from_regex(text)
    elif found and kind == "lark":
        grammar = LLMatcher.grammar_from_lark(text)
    else:
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITE_SPACE})
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=MASK_LIMITS)
    if matcher.is_error():
        raise ValueError((matcher.get_error().strip().splitlines() or ["no reason given"])[0])
    return matcher


def attempt(tokens: LLTokenizer, schema: str, seconds: int, megabytes: int) -> dict[str, Any]:
    """Compile a schema and work out its first mask, in a process of its own."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.nice(NICE)
            limit(seconds, megabytes)
            os.write(sink, json.dumps(outcome(tokens, schema)).encode())
        finally:
            os._exit(0)
    os.close(sink)
    if not select.select([source], [], [], USUAL_SECONDS)[0]:
        with suppress(OSError):  # it has ended meanwhile
            os.sched_setscheduler(child, os.SCHED_IDLE, os.sched_param(0))
    with os.fdopen(source, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    if said:
        return json.loads(said)
    return {"error": f"it takes more than {seconds} s or {megabytes} MiB to compile", "costly": True}


def limit(seconds: int, megabytes: int) -> None:
    with open("/proc/self/statm", encoding="ascii") as sizes:
        used = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20),) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(WALL_FACTOR * seconds)  # ends the process


def outcome(tokens: LLTokenizer, schema: str) -> dict[str, Any]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        compile_schema(tokens, schema).compute_bitmask()
    except ValueError as error:
        return {"error": str(error)[:500]}
    return {"kilobytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, whose end closes our input
    setup = json.loads(sys.stdin.readline())
    tokens = load_tokens(**setup["tokens"])
    for line in sys.stdin:
        print(json.dumps(attempt(tokens, json.loads(line), setup["seconds"], setup["megabytes"])), flush=True)


if __name__ == "__main__":
    main()
