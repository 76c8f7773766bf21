"""The table of subcommands, and the one place where errors become a line on stderr and an exit code.

0 = done, 1 = it failed, 2 = it was asked for wrongly.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from ..errors import ForedraftError, UsageError
from .analyze import analyze
from .audit import audit
from .bench import bench
from .bridges.export import export
from .chat import chat
from .demo import demo
from .generate import generate
from .images import images
from .judge.commands import judge
from .listing import models
from .method_listing import methods
from .profile import profile
from .retrieval.complete import complete
from .retrieval.store import store
from .serve import serve
from .training.data import data
from .training.train import train

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Speculative decoding: cheap drafts, verified by the model many at a time; the same text, sooner.",
)
for command in (generate, chat, complete, serve, demo, methods, models, analyze, audit, profile, train, data, export):
    app.command()(command)
app.add_typer(bench, name="bench")
app.add_typer(judge, name="judge")
app.add_typer(store, name="store")
app.add_typer(images, name="images")

# Typer brings its own copy of click in some versions; its usage error is the base of what it exports.
BadUsage: Any = typer.BadParameter.__base__


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        result = _parser().main(list(argv) or ["--help"], "foredraft", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except BadUsage as error:
        return complain(_one_line(error), 2)
    except UsageError as error:
        return complain(str(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        return complain("interrupted", 1)
    except BrokenPipeError:  # whoever read our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ForedraftError as error:
        return complain(str(error), 1)
    except OSError as error:
        if error.filename is None or error.strerror is None:  # no file that somebody named
            raise
        return complain(f"{error.filename}: {error.strerror}", 1)


@cache
def _parser() -> Any:
    """All subcommands with their options; reading their signatures takes a tenth of a second."""
    return typer.main.get_command(app)


def complain(message: str, code: int) -> int:
    print(f"foredraft: {message}", file=sys.stderr)
    return code


# Options that strangers know from other servers, and ours.
ELSEWHERE = {
    "--max-num-seqs": "--slots",
    "--served-model-name": "--name",
    "--speculative-config": "--method",
    "--num-speculative-tokens": "--draft-length",
    "--speculative-model": "--drafter",
    "--assistant-model": "--drafter",
    "--tensor-parallel-size": "--device-map",
}


def _one_line(error: Any) -> str:
    """A usage error of the parser with the nearest name that exists."""
    # A missing argument has no message of its own, and a bad value's does not name the option: both are formatted.
    message = error.format_message() if isinstance(error, typer.BadParameter) else str(error.message)
    message = " ".join(message.split()).partition(" Did you mean")[0].rstrip(".")  # newer parsers guess as well
    if error.ctx is None:
        return f"{message}; see 'foredraft --help'"
    command, groups = error.ctx.command, list(getattr(error.ctx.command, "commands", {}))
    known = [name for p in command.params for name in p.opts] + groups
    wrong = getattr(error, "option_name", None) or message.partition("'")[2].partition("'")[0]
    near = [ELSEWHERE[wrong]] if ELSEWHERE.get(wrong) in known else difflib.get_close_matches(wrong, known, n=1)
    if near and near[0] != wrong:
        return f"{message}; did you mean {near[0]}?"
    names = f"name one of {', '.join(groups)}, or " if groups and error.ctx.parent is not None else ""
    return f"{message}; {names}see '{error.ctx.command_path} --help'"
