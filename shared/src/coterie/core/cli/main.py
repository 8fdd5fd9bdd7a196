"""Ctrl-C while modules are imported: heard at once, raised when they are complete."""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.metadata import version
from types import FrameType
from typing import TextIO

from coterie.core.errors import Interrupted, UserError, nearest
from coterie.core.registry.papers import load, papers
from coterie.core.terminal import one_line

_IMPORTING = "<frozen importlib._bootstrap>"
_AGAIN = 0.02  # seconds


@contextmanager
def never_in_an_import() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on Ctrl-C as ever, only not in the middle of an import.

    Modules with compiled parts do not expect it there: numpy goes on with half of itself, a
    module of matplotlib says that it cannot be initialised, C++ of torch ends the process. In
    5 of 120 interruptions at the start of a command, that was a traceback or no end at all. Nor in
    a ``__del__``, where Python prints the exception and goes on as if nothing had been pressed.

    Does nothing where signals cannot be heard (not in the main thread) or are not to be (nohup).

    Example:
        >>> with never_in_an_import():
        ...     import json
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    alarm = signal.signal(signal.SIGALRM, _raise_or_put_off)
    signal.signal(signal.SIGINT, _raise_or_put_off)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, alarm)


def _raise_or_put_off(number: int, frame: FrameType | None) -> None:
    if _out_of_place(frame):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    else:
        signal.default_int_handler(number, frame)


def _out_of_place(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


class Terminated(KeyboardInterrupt):
    """A command was told to end by SIGTERM, and has ended what it had started."""


@contextmanager
def sigterm_heard() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, for commands that have to end processes and remove folders.

    Once: ``timeout`` sends it twice, and the second would come in the middle of that. Does nothing
    where signals cannot be heard, or are not to be.

    Example:
        >>> with sigterm_heard():
        ...     import json
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    alarm = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGTERM, _terminate_or_put_off)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate_or_put_off(_: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if _out_of_place(frame):
        signal.signal(signal.SIGALRM, _terminate_or_put_off)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    else:
        raise Terminated


# The standard streams of a command: closed, of another encoding, or into a full disk.


class _Sink(io.FileIO):
    """A stream that loses what cannot be written, and remembers why: a run is worth more.

    A closed pipe is still an error, which ends a command as it should.
    """

    lost: OSError | None = None

    def write(self, data: object) -> int:
        """Write; what the disk refuses counts as written."""
        try:
            return super().write(data) or 0  # type: ignore[arg-type]
        except BrokenPipeError:
            raise
        except OSError as error:
            self.lost = self.lost or error
            return len(memoryview(data))  # type: ignore[arg-type]


def prepare_streams() -> None:
    """Make the streams usable, whatever started the command.

    - Closed ones (daemons, cron) go nowhere, so that no file of the run gets their number.
    - A character that the encoding lacks (``λ`` in ascii) is replaced, not an error.
    - What cannot be written, on a full disk say, does not end the command; see `complaint`.

    Streams that somebody has put in the place of the process's own are left alone.
    """
    for number in range(3):
        _open_if_closed(number)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(sys.stderr, 2)


def complaint() -> str | None:
    """Say why a part of the output was lost; None if everything was written.

    Raises:
        BrokenPipeError: nobody reads it any more.
    """
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _Sink) or raw.lost is None:
        return None
    reason = (raw.lost.strerror or str(raw.lost)).lower()
    return f"a part of the output is lost, cannot write to standard output ({reason})"


def _lasting(stream: TextIO | None, number: int) -> io.TextIOWrapper:
    if isinstance(stream, io.TextIOWrapper) and isinstance(
        getattr(stream.buffer, "raw", None), _Sink
    ):
        return stream
    encoding, by_line = "utf-8", number == 2
    if isinstance(stream, io.TextIOWrapper):
        with suppress(OSError):
            stream.flush()
        encoding = stream.encoding
        by_line = stream.line_buffering or stream.write_through
    sink = io.BufferedWriter(_Sink(number, "wb", closefd=False))
    return io.TextIOWrapper(sink, encoding, errors="replace", line_buffering=by_line)


def _open_if_closed(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        os.dup2(opened, number)  # inherited by other processes, unlike what os.open gives
        if opened == number:
            os.set_inheritable(number, True)
        else:
            os.close(opened)


# Entry point of ``coterie``. Imports neither torch nor lightning, nor any command but the one.

# What each says of itself, and its function, which is imported only when it is chosen.
COMMANDS = {
    "train": ("Train a paper on a data set", "coterie.core.cli.papers:run_train"),
    "evaluate": (
        "Measure a trained run again on its test data",
        "coterie.core.cli.runs:run_evaluate",
    ),
    "recommend": (
        "Recommend items to a user of a run, or to a new one",
        "coterie.core.cli.runs:run_recommend",
    ),
    "replay": (
        "Show what a client received, did, kept and sent in a round",
        "coterie.core.cli.replay:run_replay",
    ),
    "serve": (
        "Serve recommendations of a run over HTTP",
        "coterie.core.cli.serve:run_serve",
    ),
    "export": (
        "Write a trained model for other programs: safetensors, ONNX, peft",
        "coterie.core.cli.export:run_export",
    ),
    "compare": (
        "Put runs beside each other: settings, numbers, tests, what leaves, costs",
        "coterie.core.cli.looking:run_compare",
    ),
    "report": ("Write runs as one HTML file", "coterie.core.cli.looking:run_report"),
    "ui": ("Show the runs of a folder in a browser", "coterie.core.cli.looking:run_ui"),
    "table": ("Reproduce a table or a figure of a paper", "coterie.core.cli.papers:run_table"),
    "privacy": ("Show what leaves a client", "coterie.core.cli.papers:run_privacy"),
    "data": (
        "Show the data sets that are here, or the blocks of one",
        "coterie.core.cli.data:run_data",
    ),
    "dashboard": (
        "Save a paper's panels as a view of a W&B project, or print it",
        "coterie.core.cli.dashboard:run_dashboard",
    ),
    "list": (
        "Show papers, methods, data sets, presets and tuned configurations",
        "coterie.core.cli.list:run_list",
    ),
    "doctor": ("Check this machine and the installation", "coterie.core.cli.doctor:run_doctor"),
    "bench": (
        "Measure speed against a reference loop, in a clone of coterie",
        "coterie.core.cli.papers:run_bench",
    ),
    "certify-engines": (
        "Check that clients in processes give the bits of one process",
        "coterie.core.cli.certify:run_certify",
    ),
    "deploy": (
        "Train across machines, on Flower's runtime",
        "coterie.core.cli.deploy:run_deploy",
    ),
    "node": (
        "Take part in a deployment with data of your own",
        "coterie.core.cli.node:run_node",
    ),
    "new": ("Start a paper of your own", "coterie.core.cli.new:run_new"),
    "sweep": ("Search for hyper-parameters on this machine", "coterie.core.cli.sweep:run_sweep"),
}
_MEMORY = (
    "this machine has too little memory for these settings: lower sizes (of the model, of batches, "
    "of the data), or --engine.chunk"
)
BAD_INPUT, INTERRUPTED, PIPE_CLOSED, TERMINATED = 2, 130, 141, 143
_STARTING_OTHERS = ("certify-engines", "deploy")  # programs, which have to end with the command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status.

    The status is 0 for success, 2 for a mistake of the user's (one line on stderr), 130 for an
    interruption, 143 for SIGTERM where a command has to clear up. Any other exception is a bug and
    keeps its traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # Large tensors on huge pages: a page fault for 2 MB, not for 4 kB. torch reads it once.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # A notebook's kernel names a backend that need not be installed here; no window is opened.
    os.environ.pop("MPLBACKEND", None)
    prepare_streams()
    try:
        heard = sigterm_heard() if words[:1] and words[0] in _STARTING_OTHERS else nullcontext()
        with never_in_an_import(), heard:
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
        status = TERMINATED if isinstance(end, Terminated) else INTERRUPTED
        return _stop(_interrupted(words, end), status)
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
    width = max(10, *map(len, commands))
    lines = [f"  {name:<{width}} {text}" for name, text in commands.items()]
    usage = f"usage: {program} COMMAND [--help] ..."
    return "\n".join([usage, "", f"{about}commands:", *lines])


def _interrupted(words: list[str], end: KeyboardInterrupt) -> str:
    again = shlex.join(["coterie", *(word for word in words if word != "--resume")])
    if words[0] in ("table", "sweep"):
        return f"interrupted; the runs that are done are kept; to go on, say: {again}"
    if words[:2] == ["deploy", "up"]:
        return f"interrupted; to go on, say: {again}"
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
