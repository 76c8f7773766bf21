"""A folder with `custom_generate/generate.py`, which transformers puts in the place of `.generate` if it is trusted to.

All arguments of generate() arrive here, streamers and stop strings too; then the loop of `speculate` runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import UsageError
from .speculate import Speculate, speculate

FOLDER, FILE = "custom_generate", "generate.py"
CODE = '''"""generate() of this folder: foredraft drafts and verifies (`foredraft export --to transformers`)."""

from foredraft import custom_generate

SETTINGS = {settings}


def generate(inputs=None, generation_config=None, *, model, **arguments):
    return custom_generate(model, SETTINGS, inputs=inputs, generation_config=generation_config, **arguments)
'''
_LOOPS: dict[str, Speculate] = {}


def write_custom_generate(folder: Path, method: str, drafter: str | None = None, stays: Path | None = None) -> Path:
    """Write the file; `drafter`: a trained head inside the folder, `stays`: where the folder will be."""
    settings = {"method": method, "drafter": drafter, "folder": str((stays or folder).absolute())}
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    (place / FILE).write_text(CODE.format(settings=_literal(settings)), encoding="utf-8")
    (place / "requirements.txt").write_text("foredraft\n", encoding="utf-8")
    return place / FILE


def custom_generate(model: Any, settings: dict[str, Any], **arguments: Any) -> Any:
    """generate() with the loop that a folder's settings describe."""
    if arguments.pop("assistant_model", None) is not None:
        raise UsageError("assistant_model and foredraft both draft; leave one of them out")
    tokenizer, streamer = arguments.pop("tokenizer", None), arguments.pop("streamer", None)
    stops = arguments.pop("stop_strings", None)
    if stops is not None:
        arguments["stopping_criteria"] = _with_stop_strings(arguments.get("stopping_criteria"), tokenizer, stops)
    loop = _loop(settings, tokenizer, str(getattr(model, "name_or_path", "")))
    loop.streamer = streamer
    given = {name: value for name, value in arguments.items() if value is not None}
    return type(model).generate(model, custom_generate=loop, **given)


def _loop(settings: dict[str, Any], tokenizer: Any, came_from: str) -> Speculate:
    """One loop for each folder, so that drafters keep what they have learnt."""
    drafter = settings.get("drafter")
    if drafter is not None:  # beside the model, else where it was written
        places = [Path(came_from) / drafter, Path(settings["folder"]) / drafter]
        drafter = str(next((place for place in places if place.exists()), places[0]))
    key = json.dumps([settings["method"], drafter, came_from])
    if key not in _LOOPS:
        named: dict[str, Any] = {} if drafter is None else {"drafter": drafter}
        _LOOPS[key] = speculate(settings["method"], **named)
    _LOOPS[key].tokenizer = tokenizer if tokenizer is not None else _LOOPS[key].tokenizer
    return _LOOPS[key]


def _with_stop_strings(criteria: Any, tokenizer: Any, stops: Any) -> list[Any]:
    from transformers import StoppingCriteriaList, StopStringCriteria

    if tokenizer is None:
        raise UsageError("stop_strings need the tokenizer: generate(.., stop_strings=[..], tokenizer=tokenizer)")
    return StoppingCriteriaList([*(criteria or ()), StopStringCriteria(tokenizer, stops)])


def _literal(settings: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {value!r}" for key, value in settings.items()) + "}"
