"""The papers' methods against the table: every one is a method, but for those listed here as still missing."""

from __future__ import annotations

from foredraft.recipes.table import RECIPES

PAPERS = """
    judge tetris kangaroo dyspec eagle2 canonical-multi-draft target-init-mcsd optimal-multi-draft specdec++
    multi-candidate spectr s2d online opt-tree fastdraft duodecoding koala eesd falcon cascade sdsat mlp-speculator
    easyspec rasd dovetail lantern pearl adaeagle draft-and-verify ouroboros griffin dresd superposed
"""
OWN = "forerunner"
BASELINES = "plain draft-model prompt-lookup suffix rest lookahead medusa eagle eagle3"
# What is not in the table yet, a line for each so that rows can come from several sides. The list may only shrink:
# whoever adds a row takes its name off here.
MISSING: set[str] = set()


def test_every_method_is_in_the_table_but_those_listed() -> None:
    papers, baselines = PAPERS.split(), BASELINES.split()
    assert len(papers) == len(set(papers)) == 33
    assert {*papers, *baselines, OWN} - set(RECIPES) == MISSING
