"""How a deployment goes: ``status.json`` in the server's folder, and a file for collectors."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning

from coterie.core.engines.nodes import Nodes
from coterie.core.errors import UserError
from coterie.core.files import write_json, write_text
from coterie.core.flower.courier import Lost

_EVERY = 1.0  # seconds between two looks
_ALIVE = 5.0  # seconds after which it is written though nothing has changed
_REFUSED = 10  # of the newest refusals that are told
_FACTS: dict[str, Any] = {
    "paper": "",
    "run": "",
    "round": 0,
    "block": 0,
    "nodes": [],
    "refused": [],
    "metrics": {},
    "error": "",
}
METRICS = "metrics.prom"
"""In the folder of the run: the newest numbers, as a collector of text files reads them."""


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """Say why a run could not begin."""
    try:
        yield
    except Exception as error:
        said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        with suppress(UserError):
            write_status(path, {**_FACTS, "state": "failed", "error": said})
        raise


def write_status(path: Path, found: Mapping[str, Any]) -> None:
    """Write how a run goes.

    Raises:
        UserError: the disk is full.
    """
    time = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(path, {**found, "time": time, "pid": os.getpid()})


class Status(lightning.Callback):
    """Say how a run goes: before its first round, between rounds and while one goes on.

    Args:
        path: of the file.
        exchange: which knows the nodes.
        facts: that stay.
    """

    def __init__(self, path: Path, exchange: Nodes, facts: Mapping[str, Any]) -> None:
        self.path, self._exchange = path, exchange
        self._facts: dict[str, Any] = {**_FACTS, "state": "waiting for nodes", **facts}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="status", daemon=True)

    def __enter__(self) -> Status:
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *_: Any) -> None:
        if error is None and (Path(self._facts.get("folder", "")) / "summary.json").is_file():
            self._end("finished", "")
        elif error is None:
            self._end("cut short", "by its trainer's settings: flwr run with resume=true goes on")
        elif isinstance(error, Lost):
            self._end("lost", str(error))
        elif isinstance(error, Exception):
            self._end("failed", f"{' '.join(str(error).split()) or type(error).__name__}")
        else:  # told to end, by flwr stop or with its SuperLink
            self._end("stopped", "go on by --run-config 'resume=true'")

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Note where the run's folder is."""
        self._facts["folder"] = str(trainer.default_root_dir)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """A round begins."""
        run = pl_module.run
        self._facts |= {"state": "training", "round": run.round, "block": max(run.block, 0)}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """A round is done."""
        run = pl_module.run
        newest = [
            {"round": run.round, "step": step, "client": client, "why": why}
            for step, client, why in run.journal.refused
        ]
        kept = [*self._facts["refused"], *newest][-_REFUSED:]
        scalars = {name: float(value) for name, value in sorted(run.journal.scalars.items())}
        self._facts |= {
            "round": run.round,
            "block": run.block,
            "refused": kept,
            "metrics": scalars,
        }
        write_text(Path(trainer.default_root_dir) / METRICS, prometheus(scalars, run.round))

    def _keep(self) -> None:
        shown, when = "", 0.0
        while not self._stop.wait(_EVERY):
            found = self._found()
            text = json.dumps(found, default=str)
            if text != shown or time.monotonic() - when > _ALIVE:
                with suppress(UserError):  # a full disk: told by what matters
                    write_status(self.path, found)
                shown, when = text, time.monotonic()

    def _end(self, state: str, error: str) -> None:
        self._stop.set()
        self._thread.join()
        self._facts |= {"state": state, "error": error}
        with suppress(UserError):
            write_status(self.path, self._found())

    def _found(self) -> dict[str, Any]:
        late = self._exchange.costs.late
        nodes = [row | {"late": row["node"] in late} for row in self._exchange.status()]
        return {**self._facts, "nodes": nodes}


def prometheus(scalars: Mapping[str, float], number: int) -> str:
    """Write numbers of a round in the text format of Prometheus.

    Example:
        >>> print(prometheus({"eval/ndcg@10": 0.25}, 3), end="")
        # TYPE coterie_round gauge
        coterie_round 3
        # TYPE coterie_eval_ndcg_10 gauge
        coterie_eval_ndcg_10 0.25
    """
    lines = []
    for name, value in {"round": number, **scalars}.items():
        known = "coterie_" + re.sub(r"\W+", "_", name).strip("_")
        lines += [f"# TYPE {known} gauge", f"{known} {value!r}"]
    return "\n".join(lines) + "\n"
