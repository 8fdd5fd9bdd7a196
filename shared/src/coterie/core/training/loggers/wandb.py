"""Weights & Biases: offline by default, one run for one (paper, data, method, seed)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger

from coterie.core.metrics.monitor import Monitor
from coterie.core.registry.keys import CLIENT_TABLE, KEYS, NAMESPACES, X_AXIS, MetricKey
from coterie.core.registry.papers import heavy
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import LoggerSettings
from coterie.core.training.loggers.aside import Aside
from coterie.core.training.loggers.client_rows import ClientRows, histogram
from coterie.core.training.loggers.public_model import write_public_model
from coterie.core.training.loggers.rounds import Measured, RoundLogger

logger = logging.getLogger(__name__)

PATIENCE = 60.0  # seconds that a finished training waits for the files of an offline run
UPLOADING = 600.0  # and for the upload of an online one; what is not up by then is in the files
CONNECT_SECONDS = 15  # that a server may take to answer; no round waits
FLUSH_SECONDS = 1.0  # what is lost when the process is killed; W&B's default is 15
_OFF = "W&B logging is off, metrics.csv goes on"
RESULTS = ("config.yaml", "metrics.csv", "ledger.json", "curves.png", "curves.svg")
NUMBERS = ("metrics", "reference")  # of summary.json; its notes may name clients


@dataclass(frozen=True)
class RunCard:
    """What a W&B run stands for, and how runs are found again.

    Attributes:
        paper: name.
        method: with what else chooses the variant.
        data: name.
        seed: of the run.
        tags: such as the preset.
        kind: federated, or the bound that it is: central or local.
        origin: of the numbers, for the config: paper, digest of the data, commits.
    """

    paper: str
    method: str
    data: str
    seed: int
    tags: tuple[str, ...] = ()
    kind: str = "federated"
    origin: Mapping[str, Any] = field(default_factory=dict)


class RoundWandbLogger(WandbLogger, RoundLogger):
    """Lightning's `WandbLogger` for rounds; never needs a network or an account, never ends a run.

    W&B gets the journal's scalars, histograms of per-client measurements, a capped table under
    hashed client names, and at the end an artifact of settings, metrics and curves; no private
    state, no ids, no console output, no checkpoint. What the server holds goes if asked for.

    All calls of W&B are made by a thread beside the training, which never waits for one but at the
    end, and then for so long. Whatever goes wrong there is warned of once, and all further calls
    are left out.

    A resumed run has the same W&B run id: online it goes on in the same run, offline it writes a
    second file that ``wandb sync`` adds to the first. Under ``wandb agent`` the run is online.

    Args:
        settings: section of the run's settings.
        folder: of the run.
        card: what the run stands for.
        monitor: what the best round is chosen by; W&B keeps its best value.
        measures: per-client measurements that are columns of the client table.
        keys: what the paper measures beside what the core does.
    """

    def __init__(
        self,
        settings: LoggerSettings,
        folder: Path,
        card: RunCard,
        monitor: Monitor | None = None,
        measures: Sequence[str] = (),
        keys: Sequence[MetricKey] = (),
    ) -> None:
        # An agent of a sweep says which run it expects.
        self._online = settings.wandb == "online" or "WANDB_SWEEP_ID" in os.environ
        super().__init__(
            name=f"{card.paper}-{card.method}-{card.data}-{card.seed}",
            save_dir=folder.resolve(),
            offline=not self._online,
            project=settings.project,
            # Runs that are compared with one another: methods and seeds on one data set.
            group=settings.group or f"{card.paper}/{card.data}",
            job_type=card.kind,
            tags=list(card.tags),
        )
        self._wandb_init.pop("anonymous", None)  # newer versions warn of it
        if not self._online:
            self._wandb_init.pop("resume", None)  # older ones warn of it
        self.settings, self.card, self.folder = settings, card, folder.resolve()
        self.summaries = {
            key.name: key.summary
            for key in (*KEYS, *keys)
            if "*" not in key.name and key.name != X_AXIS
        }
        if monitor is not None:
            self.summaries[monitor.key] = monitor.summary
        self.rows = ClientRows(tuple(measures), settings.client_rows)
        self._run_id: str | None = None
        self._due: dict[str, int] = {}  # measurement -> round of its next histogram
        self._aside = Aside("wandb", self._say)
        self._line: dict[str, Any] = {}  # of the round that is not over
        self._table: Any = None
        self._begun_run: Any = None
        self._lost = False  # whether the service of W&B is gone
        self.waits, self._trained = False, False

    @property
    def experiment(self) -> Any:
        """The run of W&B, once it has begun; None where it could not begin."""
        self._aside.wait(CONNECT_SECONDS)
        return self._begun_run

    def begin(self, run: FederatedRun) -> None:
        """Start the run."""
        super().begin(run)
        self._run_id = self._run_id or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        self._wandb_init["id"] = self._id = self._run_id
        self._aside.do(self._start)

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Have W&B keep the settings."""
        given = dict(params)
        self._aside.do(lambda: self._begun_run.config.update(given, allow_val_change=True))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers of a round."""
        self._add(self.run.round, {n: v for n, v in metrics.items() if n != "epoch"})

    def log_clients(self, measured: Measured, step: int) -> None:
        """Log histograms, every so many rounds, and rows of the client table."""
        due = {name: pair for name, pair in measured.items() if step >= self._due.get(name, 0)}
        for name in due:
            self._due[name] = step + self.settings.histogram_every
        try:
            counted = {name: histogram(values) for name, (_, values) in due.items()}
            rows = self.rows.take(step, due)
        except ValueError as error:  # no measurement: one number a client
            self._aside.fail(str(error))
            return
        self._add(step, {n: pair for n, pair in counted.items() if pair}, rows)

    def end_round(self) -> None:
        """Send the round's line: nothing comes to it any more."""
        self._aside.do(self._commit)

    def finalize(self, status: str) -> None:
        """Finish the run, or once it is concluded where that is awaited."""
        if self.waits and status == "success":
            self._trained = True
        else:
            self._end(0 if status == "success" else 1)

    def conclude(self) -> None:
        """Finish a run that was trained, now that its last files are there."""
        self.waits = False
        if self._trained:
            self._trained = False
            self._end(0)

    def _end(self, code: int) -> None:
        """Finish the run; wait until everything is written."""
        self._aside.do(self._commit)
        self._aside.do(lambda: self._finish(code))
        patience = UPLOADING if self._online else PATIENCE
        ended = self._aside.end(patience, whatever=lambda: self._close(1))
        if not ended:
            runs = shlex.quote(str(self.folder / "wandb")) + "/run-*"
            rest = f"; say: wandb sync {runs}" if self._online else ""
            self._aside.fail(f"it did not finish within {patience:.0f} s{rest}")
        if not ended or self._lost:
            self._leave()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on as the same W&B run."""
        return {
            "id": self._run_id,
            "salt": self.rows.salt,
            "written": self.rows.written,
            "due": dict(self._due),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self._run_id = state["id"]
        self.rows.salt = state["salt"]
        self.rows.written = state["written"]
        self._due = state["due"]

    def _leave(self) -> None:
        """Keep the process, at its end, from waiting for a service of W&B that does not answer.

        The first that a teardown does is to take W&B's own hook back.
        """
        last = Aside("wandb teardown", lambda error: None)
        last.do(lambda: heavy("wandb").teardown())
        last.end(1.0)

    def _say(self, error: str) -> None:
        self._lost = "Connection" in error or "BrokenPipe" in error
        logger.warning("%s: %s", _OFF, error)

    def _add(self, step: int, values: dict[str, Any], rows: Sequence[Sequence[Any]] = ()) -> None:
        self._aside.do(lambda: self._take(step, values, rows))

    # What follows runs in the thread.

    def _start(self) -> None:
        (self.folder / "wandb").mkdir(parents=True, exist_ok=True)
        with self._environment():
            wandb = heavy("wandb")
            self._begun_run = self._experiment = self._begun(wandb)
        run = self._begun_run
        if self.card.origin:
            run.config.update(dict(self.card.origin), allow_val_change=True)
        run.define_metric(X_AXIS)
        for namespace in (*NAMESPACES, self.card.paper):
            run.define_metric(f"{namespace}/*", step_metric=X_AXIS)
        for name, summary in self.summaries.items():
            run.define_metric(name, step_metric=X_AXIS, summary=summary)
        columns = [X_AXIS, "client", *self.rows.measures]
        self._table = wandb.Table(columns=columns, log_mode="INCREMENTAL")

    def _begun(self, wandb: Any) -> Any:
        """Start the run; one that cannot go online, without login or network, is kept offline."""
        if self._online:
            try:
                return self._init(wandb, "online")
            # Whatever W&B raises: a training of hours keeps its record.
            except Exception as error:
                wandb.teardown()  # its service holds the id of the run that was not begun
                logger.warning(
                    "W&B is not online (%s), so the run is kept offline; to upload it, say: wandb "
                    "login, then wandb sync %s",
                    " ".join(f"{type(error).__name__}: {error}".split()),
                    shlex.quote(str(self.folder / "wandb")) + "/offline-run-*",
                )
        return self._init(wandb, "offline")

    def _init(self, wandb: Any, mode: str) -> Any:
        settings = wandb.Settings(
            mode=mode,
            silent=True,
            console="off",
            save_code=False,
            init_timeout=CONNECT_SECONDS,
            reinit="create_new",  # a run of the caller's own goes on
            **_flushing(wandb),
        )
        run = wandb.init(**self._wandb_init, settings=settings)
        for handler in logging.getLogger("wandb").handlers:  # its own log: on a full disk, silent
            handler.handleError = lambda record: None  # type: ignore[method-assign]
        return run

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """Have W&B write into the run folder alone; by default it uses the home folder, too."""
        own = dict.fromkeys(("WANDB_DATA_DIR", "WANDB_CACHE_DIR"), str(self.folder / "wandb"))
        if not self._online:
            # W&B's own error reporting looks for its server even when the run is offline.
            own["WANDB_ERROR_REPORTING"] = "false"
        missing = {name: value for name, value in own.items() if name not in os.environ}
        os.environ.update(missing)
        try:
            yield
        finally:
            for name in missing:
                os.environ.pop(name, None)

    def _take(self, step: int, values: dict[str, Any], rows: Sequence[Sequence[Any]]) -> None:
        if self._line.get(X_AXIS, step) != step:
            self._commit()
        wandb = heavy("wandb")
        line = {X_AXIS: step}
        for name, value in values.items():
            if isinstance(value, tuple):
                line[f"clients/{name}"] = wandb.Histogram(np_histogram=value)
            else:
                line[name] = value
        for row in rows:
            self._table.add_data(*row)
        if rows:
            line[CLIENT_TABLE] = self._table
        self._line |= line

    def _commit(self) -> None:
        if self._line:
            line, self._line = self._line, {}
            # The step is the round, so that both parts of a resumed run lie on one axis.
            with self._environment():
                self._begun_run.log(line, step=line[X_AXIS], commit=True)

    def _finish(self, code: int) -> None:
        results = [self.folder / name for name in RESULTS if (self.folder / name).is_file()]
        with self._environment():
            if code == 0 and results:
                artifact = heavy("wandb").Artifact(f"run-{self._run_id}", type="results")
                for file in results:
                    artifact.add_file(str(file))
                self._add_numbers(artifact)
                self._begun_run.log_artifact(artifact)
            if code == 0 and self.settings.model:
                self._keep_model()
            self._close(code)

    def _add_numbers(self, artifact: Any) -> None:
        """Add the final numbers of a finished run, beside the paper's and those of simple rules."""
        path = self.folder / "summary.json"
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            with artifact.new_file("numbers.json", encoding="utf-8") as file:
                json.dump({name: found.get(name) for name in NUMBERS}, file, indent=2)

    def _keep_model(self) -> None:
        """Have W&B keep what the server holds after the best round."""
        found = write_public_model(self.folder, self.folder / "wandb" / "server.safetensors")
        if found is not None:
            about = {"round": found, "paper": self.card.paper, "method": self.card.method}
            kept = heavy("wandb").Artifact(f"model-{self._run_id}", type="model", metadata=about)
            kept.add_file(str(self.folder / "wandb" / "server.safetensors"))
            self._begun_run.log_artifact(kept)

    def _close(self, code: int) -> None:
        if self._begun_run is not None:
            run, self._begun_run = self._begun_run, None
            run.finish(exit_code=code)


@contextlib.contextmanager
def concluded(loggers: Sequence[Any]) -> Iterator[None]:
    """Let W&B wait for the files that a run writes after its last round; end it then.

    Args:
        loggers: of the run, those of W&B among them.
    """
    waiting = [one for one in loggers if isinstance(one, RoundWandbLogger)]
    for one in waiting:
        one.waits = True
    try:
        yield
    finally:
        for one in waiting:
            one.conclude()


def wandb_logger(*arguments: Any) -> RoundWandbLogger | None:
    """Make the logger, arguments as there; None, with a warning, where W&B is not installed."""
    if find_spec("wandb") is not None:
        return RoundWandbLogger(*arguments)
    logger.warning("%s: wandb is not installed (pip install wandb)", _OFF)
    return None


def _flushing(wandb: Any) -> dict[str, float]:
    """Say how often W&B writes, to versions that can be told (0.31 and later).

    Older ones keep up to 15 seconds, which are lost when the process is killed.
    """
    name = "x_transaction_log_flush_interval"
    known = getattr(wandb.Settings, "model_fields", {})
    return {name: FLUSH_SECONDS} if name in known else {}
