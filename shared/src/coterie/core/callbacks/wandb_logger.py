"""Weights & Biases: offline by default, one run for one (paper, data, method, seed)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.callbacks.client_log import ClientRows, histogram
from coterie.core.callbacks.contract import RoundCallback, Rounds
from coterie.core.callbacks.wandb_run import WandbRun
from coterie.core.metrics.monitor import Monitor
from coterie.core.registry.keys import KEYS, X_AXIS, MetricKey

if TYPE_CHECKING:
    from coterie.core.settings.sections import LoggerSettings


@dataclass(frozen=True)
class RunCard:
    """What a W&B run stands for, and how runs are found again; tags are such as the preset."""

    paper: str
    method: str
    data: str
    seed: int
    tags: tuple[str, ...] = ()


class WandbLog(RoundCallback):
    """Log rounds to W&B; never needs a network or an account, never breaks a run.

    W&B gets the journal's scalars, histograms of per-client measurements and a capped table under
    hashed client names; no private state, no ids, no console output, no artifact of ours.

    A resumed run has the same W&B run id: online it goes on in the same run, offline it writes a
    second file that ``wandb sync`` adds to the first. Under ``wandb agent`` the run is online.

    Args:
        config: the resolved settings.
        monitor: what the best round is chosen by; W&B keeps its best value.
        measures: per-client measurements that are columns of the client table.
        keys: what the paper measures beside what the core does.
    """

    def __init__(
        self,
        settings: LoggerSettings,
        folder: Path,
        card: RunCard,
        config: Mapping[str, Any],
        monitor: Monitor | None = None,
        measures: Sequence[str] = (),
        keys: Sequence[MetricKey] = (),
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.card = card
        self.config = dict(config)
        self.summaries = {
            key.name: key.summary
            for key in (*KEYS, *keys)
            if "*" not in key.name and key.name != X_AXIS
        }
        if monitor is not None:
            self.summaries[monitor.key] = monitor.summary
        self.rows = ClientRows(tuple(measures), settings.client_rows)
        self._id: str | None = None
        self._due: dict[str, int] = {}  # measurement -> round of its next histogram
        self._run: WandbRun | None = None

    def start(self, run: Rounds) -> None:
        """Start the run."""
        if self.settings.wandb == "off":
            return
        # An agent of a sweep says which run it expects.
        card = self.card
        self._id = self._id or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        self._run = WandbRun(
            self.folder,
            online=self.settings.wandb == "online" or "WANDB_SWEEP_ID" in os.environ,
            namespaces=(card.paper,),
            summaries=self.summaries,
            columns=(X_AXIS, "client", *self.rows.measures),
            init={
                "id": self._id,
                "project": self.settings.project,
                "name": f"{card.paper}-{card.method}-{card.data}-{card.seed}",
                # Runs that are compared with one another: methods and seeds on one data set.
                "group": self.settings.group or f"{card.paper}/{card.data}",
                "job_type": "federated",
                "tags": list(card.tags),
                "config": self.config,
            },
        )

    def write(self, run: Rounds) -> None:
        """Log the round."""
        if self._run is not None:
            self._log(self._run, run)

    def end(self, run: Rounds) -> None:
        """Finish the run."""
        self._finish(0)

    def failed(self, run: Rounds) -> None:
        """Finish the run as failed."""
        self._finish(1)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on as the same W&B run."""
        return {
            "id": self._id,
            "salt": self.rows.salt,
            "written": self.rows.written,
            "due": dict(self._due),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self._id = state["id"]
        self.rows.salt = state["salt"]
        self.rows.written = state["written"]
        self._due = state["due"]

    def _log(self, run: WandbRun, rounds: Rounds) -> None:
        measured = {
            name: pair
            for name, pair in rounds.journal.clients.items()
            if rounds.round >= self._due.get(name, 0)
        }
        for name in measured:
            self._due[name] = rounds.round + self.settings.histogram_every
        try:
            counted = {name: histogram(values) for name, (_, values) in measured.items()}
            rows = self.rows.take(rounds.round, measured)
        except ValueError as error:  # no measurement: one number a client
            run.fail(str(error))
            return
        histograms = {n: [part.tolist() for part in pair] for n, pair in counted.items() if pair}
        scalars = {**rounds.journal.scalars, "block": rounds.block}
        run.log(rounds.round, scalars=scalars, histograms=histograms, rows=rows)

    def _finish(self, code: int) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.finish(code)
