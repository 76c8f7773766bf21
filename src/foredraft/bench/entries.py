"""What `--methods` names: methods with their options, so that variants of one method are rows of one table.

`suffix,draft-model:drafter=layers:8,shape=static:4x2,length=5` are two entries, spelled as everywhere
(`recipes.spelling`). It knows names and options, and builds nothing.
"""

from __future__ import annotations

from ..errors import UsageError
from ..recipes import RECIPES, MethodSpec, read_methods

PLAIN, ALONE, ALL = "plain", "alone", "all"  # `alone` = the draft model writing by itself, for comparison of quality

Entry = MethodSpec  # one row of the table: a method and what was changed of it


def parse(text: str) -> list[Entry]:
    """The entries of a comma-separated list, each once; plain decoding is always measured and need not be named.

    `all` stands for every method of the table that is not spelled beside it: `all,sequoia:shape=sequoia:nodes=64`.
    """
    entries = read_methods(text, (ALONE, ALL))
    if not entries:
        raise UsageError("--methods is empty; name methods as in 'foredraft methods', or leave it out for all")
    if takes_all(text):
        spelled = {entry.method for entry in entries}
        entries = [Entry(name) for name in RECIPES if name not in spelled] + [e for e in entries if e.method != ALL]
    return [entry for entry in entries if entry != Entry(PLAIN)]


def takes_all(text: str) -> bool:
    """Whether a list asks for every method: those that cannot be built here are then left out."""
    return any(entry.method == ALL for entry in read_methods(text, (ALONE, ALL)))
