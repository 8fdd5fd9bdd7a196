"""Weights & Biases: offline by default, one run for one (paper, data, method, seed)."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from coterie.core.callbacks.client_log import ClientRows, histogram
from coterie.core.callbacks.contract import Rounds, rounds_of
from coterie.core.callbacks.keys import CLIENT_MEASURES, CLIENT_TABLE, KEYS, NAMESPACES, X_AXIS

if TYPE_CHECKING:
    from coterie.core.settings import LoggerSettings

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0  # what a killed process can lose of the offline file; W&B's default is 15


@dataclass(frozen=True)
class RunCard:
    """What a W&B run stands for, and how runs are found again.

    Attributes:
        job_type: "federated", or "central", "local" for baselines.
        tags: such as the preset.
    """

    paper: str
    method: str
    data: str
    seed: int
    job_type: str = "federated"
    tags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the run."""
        return f"{self.paper}-{self.method}-{self.data}-{self.seed}"

    @property
    def group(self) -> str:
        """Runs that are compared with one another: methods and seeds on one data set.

        Example:
            >>> RunCard("f3crec", "ft", "ml-100k", 3).group
            'f3crec/ml-100k'
        """
        return f"{self.paper}/{self.data}"


class WandbLog(Callback):
    """Log rounds to W&B; never needs a network or an account, never breaks a run.

    Whatever W&B raises is caught, warned of once, and logging is off from then on. It gets the
    journal's scalars, histograms of per-client measurements and a capped table under hashed
    client names; no private state, no ids, no console output, no artifact of ours. Lightning's own
    WandbLogger is not used: it logs by ``self.log`` against its own step counter.

    A resumed run has the same W&B run id: online it goes on in the same run, offline it writes a
    second file that ``wandb sync`` adds to the first. Under ``wandb agent`` the run is online.

    Args:
        settings: what the user chose.
        folder: the run folder; W&B writes into its subfolder ``wandb``.
        card: what the run is.
        config: the resolved settings.
        monitor: the validation metric, whose largest value W&B keeps.
        measures: per-client measurements that are columns of the client table.
    """

    def __init__(
        self,
        settings: LoggerSettings,
        folder: Path,
        card: RunCard,
        config: Mapping[str, Any],
        monitor: str | None = "eval/ndcg@20",
        measures: Sequence[str] = CLIENT_MEASURES,
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.card = card
        self.config = dict(config)
        self.monitor = monitor
        self.rows = ClientRows(tuple(measures), settings.client_rows)
        self._id: str | None = None
        self._due: dict[str, int] = {}  # measurement -> round of its next histogram
        self._to_unset: list[str] = []
        self._wandb: Any = None
        self._run: Any = None
        self._table: Any = None

    @property
    def active(self) -> bool:
        """Whether rounds are being logged."""
        return self._run is not None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the run."""
        if self.settings.wandb != "off":
            self._guard(self._start)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the round in one call."""
        if self._run is not None:
            self._guard(lambda: self._log(rounds_of(pl_module)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finish the run."""
        self._finish(0)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Finish the run as failed."""
        self._finish(1)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on as the same W&B run."""
        return {
            "id": self._id,
            "salt": self.rows.salt,
            "written": self.rows.written,
            "due": self._due,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self._id = state_dict["id"]
        self.rows.salt = state_dict["salt"]
        self.rows.written = state_dict["written"]
        self._due = state_dict["due"]

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        # W&B may raise anything (its process dies, the disk is full, an API changes), and a
        # training run must not end for the sake of its log.
        except Exception as error:
            self._run = None
            reason = (
                "wandb is not installed (pip install wandb)"
                if isinstance(error, ModuleNotFoundError) and error.name == "wandb"
                else f"{type(error).__name__}: {error}"
            )
            logger.warning("W&B logging is off, metrics.csv goes on: %s", reason)

    def _start(self) -> None:
        online = self.settings.wandb == "online" or "WANDB_SWEEP_ID" in os.environ
        if not online:
            # W&B's own error reporting looks for its server even when the run is offline.
            self._environ("WANDB_ERROR_REPORTING", "false")
        # Parts of the client table wait there for a sync; the default is in the home folder.
        self._environ("WANDB_DATA_DIR", str(self.folder / "wandb"))
        import wandb  # its import takes half a second, and it may be missing

        self._wandb = wandb
        # An agent of a sweep says which run it expects.
        self._id = self._id or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        self._run = wandb.init(
            project=self.settings.project,
            dir=str(self.folder),
            id=self._id,
            name=self.card.name,
            group=self.settings.group or self.card.group,
            job_type=self.card.job_type,
            tags=list(self.card.tags),
            config=self.config,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                mode="online" if online else "offline",
                silent=True,
                console="off",  # warnings name refused clients
                save_code=False,
                init_timeout=30,
                x_transaction_log_flush_interval=FLUSH_SECONDS,
            ),
        )
        self._define()

    def _environ(self, name: str, value: str) -> None:
        """Set what is settable by environment only, until the run is finished."""
        if name not in os.environ:
            os.environ[name] = value
            self._to_unset.append(name)

    def _define(self) -> None:
        self._run.define_metric(X_AXIS)
        for namespace in (*NAMESPACES, self.card.paper):
            self._run.define_metric(f"{namespace}/*", step_metric=X_AXIS)
        summaries = {key.name: key.summary for key in KEYS if "*" not in key.name}
        if self.monitor is not None:
            summaries[self.monitor] = "max"
        del summaries[X_AXIS]
        for name, summary in summaries.items():
            self._run.define_metric(name, step_metric=X_AXIS, summary=summary)
        columns = [X_AXIS, "client", *self.rows.measures]
        self._table = self._wandb.Table(columns=columns, log_mode="INCREMENTAL")

    def _log(self, rounds: Rounds) -> None:
        line: dict[str, Any] = {**rounds.journal.scalars, "block": rounds.block}
        line[X_AXIS] = rounds.round
        line |= self._clients(rounds)
        # The step is the round, so that both parts of a resumed run lie on one axis; a row with a
        # step of its own is held back until the next one unless it is committed.
        self._run.log(line, step=rounds.round, commit=True)

    def _clients(self, rounds: Rounds) -> dict[str, Any]:
        """Histograms and rows of the measurements whose turn it is."""
        measured = {
            name: pair
            for name, pair in rounds.journal.clients.items()
            if rounds.round >= self._due.get(name, 0)
        }
        line: dict[str, Any] = {}
        for name, (_, values) in measured.items():
            self._due[name] = rounds.round + self.settings.histogram_every
            counted = histogram(values)
            if counted is not None:
                line[f"clients/{name}"] = self._wandb.Histogram(np_histogram=counted)
        rows = self.rows.take(rounds.round, measured)
        for row in rows:
            self._table.add_data(*row)
        if rows:
            line[CLIENT_TABLE] = self._table
        return line

    def _finish(self, code: int) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            self._guard(lambda: run.finish(exit_code=code))
        while self._to_unset:
            os.environ.pop(self._to_unset.pop(), None)
