"""The page about security names a test for every finding, and the tests exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"


def test_every_finding_has_a_test_that_exists() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| finding | test |")[2]
    rows = [row for row in table.splitlines() if row.startswith("|") and not row.startswith("|---")]
    assert len(rows) > 20
    for row in rows:
        place: Path | None = None
        named = re.findall(r"`([^`]+)`", row.rpartition(" | ")[2])
        assert named, row
        for name in named:
            file, _, test = name.partition("::") if "/" in name else ("", "", name)
            place = TESTS / file if file else place
            assert place is not None and place.exists(), name
            if test:
                assert f"def {test}(" in place.read_text(encoding="utf-8"), name
