"""Entry point of ``coterie``. Imports neither torch nor lightning, nor any command but the one."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from coterie.core.errors import UserError, nearest

COMMANDS = {
    "train": "Train a paper on a data set",
    "evaluate": "Measure a trained run again on its test data",
    "recommend": "Recommend items to a user of a run, or to a new one",
    "table": "Reproduce a table or a figure of a paper",
    "privacy": "Show what leaves a client",
    "data": "Show the data sets that are here, or the blocks of one",
    "list": "Show papers, methods, data sets, presets and tuned configurations",
    "doctor": "Check this machine and the installation",
    "bench": "Measure speed against a reference loop",
    "sweep": "Search for hyper-parameters on this machine",
}
BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status.

    The status is 0 for success, 2 for a mistake of the user's (one line on stderr), 130 for an
    interruption. Any other exception is a bug and keeps its traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except UserError as error:
        return _stop("error: " + " ".join(str(error).split()), BAD_INPUT)
    except KeyboardInterrupt:
        return _stop(_interrupted(words), INTERRUPTED)
    except SystemExit as end:
        # Lightning turns an interruption into exit(1).
        if isinstance(end.__context__, KeyboardInterrupt):
            return _stop(_interrupted(words), INTERRUPTED)
        raise
    except BrokenPipeError:
        # As in `coterie list | head`: keep the interpreter from flushing into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(_usage())
        return 0 if words else BAD_INPUT
    command, rest = words[0], words[1:]
    if command == "--version":
        sys.stdout.write(f"coterie {version('coterie-core')}\n")
        return 0
    if command not in COMMANDS:
        raise UserError(f"command '{command}' is unknown: {nearest(command, COMMANDS)}")
    import_module(f"coterie.core.cli.{command}").run(rest)
    sys.stdout.flush()
    return 0


def _usage() -> str:
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: coterie COMMAND [--help] ...",
            "",
            "Train recommenders across parties that do not share their data.",
            "",
            "commands:",
            *lines,
            "",
            "Start with: coterie list, then coterie train PAPER",
            "",
        ]
    )


def _interrupted(words: list[str]) -> str:
    if words[0] != "train":
        return "interrupted"
    again = [*(word for word in words if word != "--resume"), "--resume"]
    return f"interrupted; to go on, say: {shlex.join(['coterie', *again])}"


def _stop(line: str, status: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"coterie: {line}\n")
    return status
