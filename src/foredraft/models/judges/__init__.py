"""Trained judges: the heads, and the files that hold them."""

from .artefact import Judge, JudgeSpec, change, is_judge, load_judge, read_spec, save_judge
from .heads import JudgeHead, fold

__all__ = ["Judge", "JudgeHead", "JudgeSpec", "change", "fold", "is_judge", "load_judge", "read_spec", "save_judge"]
