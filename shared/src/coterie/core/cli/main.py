"""Entry point of ``coterie``. Imports neither torch nor lightning, nor any command but the one."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version

from coterie.core.cli.interruptions import never_in_an_import
from coterie.core.cli.streams import complaint, prepare_streams
from coterie.core.errors import Interrupted, UserError, nearest
from coterie.core.registry.papers import load, papers
from coterie.core.terminal import one_line

# What each says of itself, and its function, which is imported only when it is chosen.
COMMANDS = {
    "train": ("Train a paper on a data set", "coterie.core.cli.train:run_train"),
    "evaluate": (
        "Measure a trained run again on its test data",
        "coterie.core.cli.evaluate:run_evaluate",
    ),
    "recommend": (
        "Recommend items to a user of a run, or to a new one",
        "coterie.core.cli.recommend:run_recommend",
    ),
    "table": ("Reproduce a table or a figure of a paper", "coterie.core.cli.table:run_table"),
    "privacy": ("Show what leaves a client", "coterie.core.cli.privacy:run_privacy"),
    "data": (
        "Show the data sets that are here, or the blocks of one",
        "coterie.core.cli.data:run_data",
    ),
    "list": (
        "Show papers, methods, data sets, presets and tuned configurations",
        "coterie.core.cli.list:run_list",
    ),
    "doctor": ("Check this machine and the installation", "coterie.core.cli.doctor:run_doctor"),
    "bench": (
        "Measure speed against a reference loop, in a clone of coterie",
        "coterie.core.cli.bench:run_bench",
    ),
    "new": ("Start a paper of your own", "coterie.core.cli.new:run_new"),
    "sweep": ("Search for hyper-parameters on this machine", "coterie.core.cli.sweep:run_sweep"),
}
_MEMORY = (
    "this machine has too little memory for these settings: lower sizes (of the model, of batches, "
    "of the data), or --engine.chunk"
)
BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status.

    The status is 0 for success, 2 for a mistake of the user's (one line on stderr), 130 for an
    interruption. Any other exception is a bug and keeps its traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # Large tensors on huge pages: a page fault for 2 MB, not for 4 kB. torch reads it once.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # A notebook's kernel names a backend that need not be installed here; no window is opened.
    os.environ.pop("MPLBACKEND", None)
    prepare_streams()
    try:
        with never_in_an_import():
            status = _run(words)
        lost = complaint()
        return status if lost is None else _stop(f"error: {lost}", BAD_INPUT)
    except UserError as error:
        return _stop("error: " + " ".join(str(error).split()), BAD_INPUT)
    except (MemoryError, RuntimeError) as error:
        if not _of_memory(error):
            raise
        return _stop(f"error: {_MEMORY}", BAD_INPUT)
    except KeyboardInterrupt as end:
        return _stop(_interrupted(words, end), INTERRUPTED)
    except BrokenPipeError:
        # As in `coterie list | head`: keep the interpreter from flushing into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _run(words: list[str]) -> int:
    if words[:1] == ["help"] and len(words) > 1:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(_usage())
        return 0 if words else BAD_INPUT
    command, rest = words[0], words[1:]
    if command == "--version":
        sys.stdout.write(f"coterie {version('coterie-core')}\n")
        return 0
    _in_a_folder()
    if command in COMMANDS:
        load(COMMANDS[command][1])(rest)
    else:
        _run_of_paper(command, rest)
    return 0


def _in_a_folder() -> None:
    """Refuse a working directory that somebody deleted: libraries of torch end the process there.

    Raises:
        UserError: it is gone.
    """
    try:
        os.getcwd()
    except OSError:
        raise UserError("the working directory is gone: cd into one that is there") from None


def _run_of_paper(name: str, words: list[str]) -> None:
    """Run a command that a single paper has, as in ``coterie llm serve``."""
    known = {alias: paper for paper in papers().values() for alias in (paper.name, paper.package)}
    if name not in known:
        raise UserError(f"command '{name}' is unknown: {nearest(name, [*COMMANDS, *known])}")
    paper = known[name]
    if not paper.commands:
        raise UserError(f"{name} has no commands of its own: say coterie train {paper.name}")
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(_commands(f"coterie {name}", paper.commands) + "\n")
        return
    command, *rest = words
    if command not in paper.commands:
        raise UserError(
            f"{name} has no command '{command}': {nearest(command, list(paper.commands))}"
        )
    import_module(f"coterie.{paper.package}.commands.{command}").run(rest)


def _usage() -> str:
    about = {name: text for name, (text, _) in COMMANDS.items()}
    own = {
        paper.package: f"What {paper.name} alone has: {', '.join(paper.commands)}"
        for paper in papers().values()
        if paper.commands
    }
    purpose = "Train recommenders across parties that do not share their data."
    start = "\nStart with: coterie list, then coterie train PAPER\n"
    return "\n".join([_commands("coterie", about | own, f"{purpose}\n\n"), start])


def _commands(program: str, commands: Mapping[str, str], about: str = "") -> str:
    lines = [f"  {name:<10} {text}" for name, text in commands.items()]
    usage = f"usage: {program} COMMAND [--help] ..."
    return "\n".join([usage, "", f"{about}commands:", *lines])


def _interrupted(words: list[str], end: KeyboardInterrupt) -> str:
    again = shlex.join(["coterie", *(word for word in words if word != "--resume")])
    if words[0] in ("table", "sweep"):
        return f"interrupted; the runs that are done are kept; to go on, say: {again}"
    if words[0] != "train":
        return "interrupted"
    if not isinstance(end, Interrupted):
        return f"interrupted before anything was saved; to begin again, say: {again}"
    if not end.saved:
        return f"interrupted before a round was saved; to begin again, say: {again} --resume"
    return f"interrupted; to go on, say: {again} --resume"


def _of_memory(error: Exception) -> bool:
    words = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _stop(line: str, status: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"coterie: {one_line(line)}\n")
    return status
