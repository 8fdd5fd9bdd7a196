"""The process that runs W&B: reads one JSON message a line, torch-free; see `wandb_run`."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from coterie.core.registry.importing import heavy
from coterie.core.registry.keys import CLIENT_TABLE, NAMESPACES, X_AXIS

OFFLINE = "offline: "  # begins the line that says why an online run is kept here instead
WRITTEN = "written"
CONNECT_SECONDS = 15  # that a server may take to answer; nothing but this process waits
FLUSH_SECONDS = 1.0  # what this process loses when it is killed too; W&B's default is 15


def main(stream: TextIO) -> int:
    """Log until the stream ends; the status is 0 if everything was written."""
    messages = (json.loads(line) for line in stream if line.endswith("\n"))
    try:
        _serve(messages)
    # The training reads the last line of what is said here, whatever W&B raised.
    except Exception as error:
        _say(error)
        return 1
    return 0


def _serve(messages: Iterator[dict[str, Any]]) -> None:
    wandb = heavy("wandb")  # it may be missing

    start = next(messages)
    run = _begun(wandb, start)
    _define(run, start)
    table = wandb.Table(columns=start["columns"], log_mode="INCREMENTAL")
    code = 1  # a stream that ends without a last message is of a training that was killed
    for message in messages:
        if "finish" in message:
            code = message["finish"]
            break
        line = {**message["scalars"], X_AXIS: message["step"]}
        for name, counted in message["histograms"].items():
            line[f"clients/{name}"] = wandb.Histogram(np_histogram=tuple(counted))
        for row in message["rows"]:
            table.add_data(*row)
        if message["rows"]:
            line[CLIENT_TABLE] = table
        # The step is the round, so that both parts of a resumed run lie on one axis; a row with a
        # step of its own is held back until the next one unless it is committed.
        run.log(line, step=message["step"], commit=True)
    run.finish(exit_code=code)
    _tell(WRITTEN)


def _begun(wandb: Any, start: dict[str, Any]) -> Any:
    """Start the run; one that cannot go online, without login or network, is kept offline."""
    if start["online"]:
        try:
            return _init(wandb, start, "online")
        # Whatever W&B raises: a training of hours keeps its record.
        except Exception as error:
            wandb.teardown()  # its service holds the id of the run that was not begun
            _tell(OFFLINE + _reason(error))
    return _init(wandb, start, "offline")


def _init(wandb: Any, start: dict[str, Any], mode: str) -> Any:
    settings = wandb.Settings(
        mode=mode,
        silent=True,
        console="off",
        save_code=False,
        init_timeout=CONNECT_SECONDS,
        x_stats_pid=start["pid"],
        **_flushing(wandb),
    )
    return wandb.init(**start["init"], dir=start["folder"], resume="allow", settings=settings)


def _flushing(wandb: Any) -> dict[str, float]:
    """Say how often W&B writes, to versions that can be told (0.31 and later).

    Older ones keep up to 15 seconds, which are lost when this process is killed too.
    """
    name = "x_transaction_log_flush_interval"
    known = getattr(wandb.Settings, "model_fields", {})
    return {name: FLUSH_SECONDS} if name in known else {}


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _define(run: Any, start: dict[str, Any]) -> None:
    """Make the round the x axis of every key, and say what the summary keeps."""
    run.define_metric(X_AXIS)
    for namespace in (*NAMESPACES, *start["namespaces"]):
        run.define_metric(f"{namespace}/*", step_metric=X_AXIS)
    for name, summary in start["summaries"].items():
        run.define_metric(name, step_metric=X_AXIS, summary=summary)


def _say(error: Exception) -> None:
    missing = isinstance(error, ModuleNotFoundError) and error.name == "wandb"
    reason = "wandb is not installed (pip install wandb)" if missing else _reason(error)
    sys.stderr.write(f"{reason}\n")


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


if __name__ == "__main__":
    # The end of the stream says when to stop, not a signal meant for the training.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.stdin))
