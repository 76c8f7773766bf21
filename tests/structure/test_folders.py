"""Folders that a reader can hold in mind: few modules each, and a name that says which module is meant."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from .source import PACKAGE, SOURCE, modules

MOST_MODULES = 14

# The same part of several siblings; any other name belongs to one module.
SIBLINGS = {
    "__init__.py",
    "app.py",  # of the command line and of the server
    "artefact.py",  # of heads and of judges
    "base.py",  # the protocol of a package
    "decision.py",  # the model and its trainer
    "eagle.py",  # the head, its drafter and its trainer; likewise the next ones
    "draft_length.py",
    "falcon.py",
    "forerunner.py",
    "sdsat.py",
    "sorted_draft.py",
    "language.py",
    "medusa.py",
    "executor.py",  # one per runtime
    "hugging_face.py",  # the peer, measured and audited
    "pipeline.py",  # of bench, train and judge/fit
}


def repeated_names(paths: list[Path]) -> list[str]:
    """Names that several modules share, siblings aside."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        by_name[path.name].append(path.as_posix())
    return [f"{name}: {places}" for name, places in by_name.items() if len(places) > 1 and name not in SIBLINGS]


def crowded_folders(paths: list[Path]) -> list[str]:
    """Folders of more modules than a reader keeps in mind; `__init__.py` does not count."""
    sizes = Counter(path.parent for path in paths if path.name != "__init__.py")
    return [f"{folder} holds {size} modules" for folder, size in sizes.items() if size > MOST_MODULES]


def source_paths() -> list[Path]:
    return [module.path.relative_to(SOURCE / PACKAGE) for module in modules()]


def test_no_two_modules_share_a_name() -> None:
    found = repeated_names(source_paths())
    assert not found, "\n".join(found)


def test_no_sibling_is_listed_in_vain() -> None:
    counts = Counter(path.name for path in source_paths())
    assert not {name for name in SIBLINGS if counts[name] < 2}


def test_folders_are_small() -> None:
    found = crowded_folders(source_paths())
    assert not found, "\n".join(found)


def test_the_checks_see_what_they_look_for() -> None:
    assert repeated_names([Path("core/tree.py"), Path("draft/tree.py"), Path("core/base.py"), Path("draft/base.py")])
    assert not repeated_names([Path("core/base.py"), Path("draft/base.py")])
    assert crowded_folders([Path(f"core/m{i}.py") for i in range(MOST_MODULES + 1)])
    assert not crowded_folders([Path("core/__init__.py"), *(Path(f"core/m{i}.py") for i in range(MOST_MODULES))])
