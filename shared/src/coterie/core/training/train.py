"""`coterie train`: run a paper's experiment in a run folder, and say what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import callbacks as theirs
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from coterie.core.data.interactions.interactions import in_words
from coterie.core.errors import Interrupted, UserError
from coterie.core.federation.federation import Federation, check_reached
from coterie.core.federation.selection import Selecting, unmeasured, untrained
from coterie.core.files import write_json, writing
from coterie.core.kernels import switch
from coterie.core.privacy.build import remarks
from coterie.core.registry.papers import Paper, heavy, load
from coterie.core.run.about import write_about, write_measured, write_parties
from coterie.core.run.checkpoint import LAST
from coterie.core.run.dashboard import render, rules, titled
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import Experiment, check
from coterie.core.run.origin import commits
from coterie.core.run.runfolder import RunFolder, Summary
from coterie.core.run.simulated import in_processes, looked_into
from coterie.core.settings.schema import values_of
from coterie.core.training.callbacks.checkpoints import Checkpoints
from coterie.core.training.callbacks.files import Curves, TranscriptFile
from coterie.core.training.callbacks.given_again import GivenAgain
from coterie.core.training.callbacks.notes import (
    Costs,
    NodeCosts,
    PrivacyBudget,
    Refusals,
    StreamScore,
)
from coterie.core.training.callbacks.progress import RoundProgress
from coterie.core.training.checks import check_callbacks, check_objects
from coterie.core.training.loggers.rounds import MetricsLogger
from coterie.core.training.loggers.wandb import RunCard, concluded, wandb_logger
from coterie.core.training.module import FederatedModule
from coterie.core.training.opening import opened_folder
from coterie.core.training.shown import show_data, show_results, show_stopped
from coterie.core.training.trainer import asked_callbacks, asked_loggers, fit


def train(
    paper: Paper,
    settings: Any,
    callbacks: Sequence[theirs.Callback] = (),
    loggers: Sequence[Logger] = (),
) -> Path:
    """Train, log, checkpoint and summarise one run of a paper; return its folder.

    Args:
        paper: to train.
        settings: of the run.
        callbacks: of Lightning, besides those that the settings name.
        loggers: of Lightning, besides those that the settings name.

    Raises:
        UserError: data, settings or the run folder are unusable; says what to do.
    """
    torch.set_num_threads(settings.engine.threads)
    switch.allow(settings.engine.kernels == "auto")
    return train_experiment(paper, load(paper.experiment)(settings), callbacks, loggers)


def train_experiment(
    paper: Paper,
    experiment: Experiment[Any],
    callbacks: Sequence[theirs.Callback] = (),
    loggers: Sequence[Logger] = (),
) -> Path:
    """Train an experiment of a paper as `train` does.

    Raises:
        UserError: as there.
    """
    settings = experiment.settings
    check(experiment.needs())
    federation = experiment.federation()
    check_objects("callbacks", callbacks, theirs.Callback)
    check_objects("loggers", loggers, Logger)
    own = [*callbacks, *asked_callbacks(settings.trainer)]
    check_callbacks(own)
    with opened_folder(paper, experiment.settings, federation) as folder, ExitStack() as until_end:
        show_data(paper, experiment)
        costs = Costs()
        beside = [costs, GivenAgain(), *_beside(paper, experiment, federation, folder), *own]
        beside.append(_checkpoints(folder, experiment.settings, federation))
        with _interruptible(folder), writing(folder.path, "then go on by --resume"):
            with _reached(experiment, federation, folder.path) as reached:
                run = FederatedRun(reached)
                check_reached(federation, run.exchange)
                write_about(folder.path, experiment, run.bound, federation.monitor)
                ours = _loggers(paper, experiment, run, folder)
                until_end.enter_context(concluded(ours))
                fit(
                    FederatedModule(run, values_of(experiment.settings)),
                    beside,
                    [*ours, *loggers],
                    settings.trainer,
                    ckpt_path=_last(folder),
                    folder=folder.path,
                )
            check_accepted(run.history)
            if not run.finished:
                show_stopped(_kept(settings, folder), run.round)
                return folder.path
            run = looked_into(run, federation, folder.path)
            experiment.finish(run, folder.path)
        _summarise(paper, experiment, run, folder, costs)
    return folder.path


@contextmanager
def _reached(
    experiment: Experiment[Any], federation: Federation, folder: Path
) -> Iterator[Federation]:
    """The federation with its clients where the settings want them."""
    name = experiment.settings.engine.name
    if name not in ("processes", "ray"):
        yield federation
        return
    reach = in_processes if name == "processes" else heavy("coterie.core.run.on_ray").on_ray
    with reach(experiment, federation, folder) as found:
        yield found


def _summarise(
    paper: Paper, experiment: Experiment[Any], run: FederatedRun, folder: RunFolder, costs: Costs
) -> None:
    """Write the numbers of a finished run, and print them."""
    federation, settings = run.federation, experiment.settings
    write_json(folder.path / "ledger.json", run.ledger.rows())
    write_parties(folder.path, run.ledger.by_party)
    write_measured(folder.path, run.client_results)
    summary = Summary(
        rounds=run.round,
        metrics=experiment.final_metrics(run),
        reference=experiment.reference(),
        up_bytes=run.ledger.bytes("up"),
        down_bytes=run.ledger.bytes("down"),
        seconds=costs.seconds,
        notes=[
            *experiment.notes(run),
            *_validation(federation),
            *_unmeasured(run),
            *_privacy(experiment, federation),
        ],
        left_out=in_words(experiment.left_out()),
        data_digest=run.bound["data"],
    )
    clients = experiment.client_table(run)
    folder.write_summary(summary)
    monitor = federation.monitor
    if monitor is not None and rules(monitor, summary.metrics) and _kept(settings, folder):
        render(folder.path, paper, monitor, titled(settings), summary.metrics)  # beside the curves
    if clients:
        write_json(folder.path / "clients.json", clients)
    shown = replace(summary, metrics=experiment.shown(summary.metrics))
    show_results(_kept(experiment.settings, folder), shown, clients)


def _privacy(experiment: Experiment[Any], federation: Federation) -> list[str]:
    client = federation.client
    return [] if client is None else remarks(experiment.settings.privacy, client.steps())


def _kept(settings: Any, folder: RunFolder) -> Path | None:
    """The folder to name to people; None where it is gone once the run has ended."""
    return None if settings.trainer.fast_dev_run else folder.path


def _validation(federation: Federation) -> list[str]:
    """Say by what rounds were chosen, if not by all rounds and clients."""
    if not isinstance(federation.server, Selecting):
        return []
    return federation.server.remarks(federation.largest)


def _unmeasured(run: FederatedRun) -> list[str]:
    monitor = run.federation.monitor
    if monitor is None:
        return []
    return [*unmeasured(run.history, run.results, monitor), *untrained(run.results)]


def check_accepted(history: Sequence[dict[str, float]]) -> None:
    """Refuse the result of a run that never accepted an answer: it would be the first model's.

    Raises:
        UserError: every answer in every round was left out.
    """
    accepted = [row["fed/clients"] for row in history if "fed/clients" in row]
    if accepted and not any(accepted):
        raise UserError(
            "no client's update was accepted in any round, as training diverged on all (see the "
            "warnings above): lower the learning rate, or clip gradients at a norm"
        )


def _beside(
    paper: Paper, experiment: Experiment[Any], federation: Federation, folder: RunFolder
) -> list[theirs.Callback]:
    """List what happens beside the rounds."""
    settings, monitor = experiment.settings, federation.monitor
    found: list[theirs.Callback] = [Refusals()]
    if monitor is not None:
        found.append(StreamScore(monitor))
    if settings.privacy.noise != "none":
        elsewhere = settings.engine.name != "in-process"
        found.append(PrivacyBudget(settings.privacy, elsewhere))
    if settings.engine.name != "in-process":
        found.append(NodeCosts())
    if settings.run.progress:
        found.append(RoundProgress())
    if settings.logger.transcript:
        found.append(TranscriptFile(folder.path))
    if not settings.trainer.fast_dev_run:
        found.append(Curves(folder.path, paper, monitor, titled(settings)))
    return found


def _checkpoints(folder: RunFolder, settings: Any, federation: Federation) -> Checkpoints:
    return Checkpoints(folder.checkpoints, settings.run.checkpoint_every, federation.monitor)


def _loggers(
    paper: Paper, experiment: Experiment[Any], run: FederatedRun, folder: RunFolder
) -> list[Logger]:
    """List where numbers of the rounds go."""
    settings, federation = experiment.settings, run.federation
    found: list[Logger] = [MetricsLogger(folder.path)]
    if settings.logger.wandb != "off":
        config = values_of(settings)
        kinds = [str(config[key]) for key in paper.named_by(settings.method)]
        method = "-".join([settings.method, *kinds])
        tags = (settings.reading, *kinds)
        code = {f"git.{where}": commit for where, commit in commits().items()}
        origin = {"paper": paper.name, "data_digest": run.bound["data"], **code}
        names = paper.name, method, settings.data.name
        card = RunCard(*names, settings.seed, tags, _kind(paper, settings), origin)
        shown = (federation.monitor, federation.client_columns, paper.keys)
        if (logger := wandb_logger(settings.logger, folder.path, card, *shown)) is not None:
            found.append(logger)
    return [*found, *asked_loggers(settings.trainer, folder.path)]


def _kind(paper: Paper, settings: Any) -> str:
    """Whether a run is federated, or a bound that federations are compared with."""
    if paper.central == paper.local:  # one network stands for both
        return "federated"
    return {paper.central: "central", paper.local: "local"}.get(settings.method, "federated")


def _last(folder: RunFolder) -> Path | None:
    """The checkpoint to go on from; None for a run that has none."""
    last = folder.checkpoints / LAST
    return last if last.is_file() else None


@contextmanager
def _interruptible(folder: RunFolder) -> Iterator[None]:
    """Tell an interruption whether it left a checkpoint; Lightning turns one into exit(1)."""
    try:
        yield
    except SIGTERMException:
        raise Interrupted((folder.checkpoints / LAST).is_file(), folder.path) from None
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and not isinstance(end.__context__, KeyboardInterrupt):
            raise
        saved = (folder.checkpoints / LAST).is_file()
        raise Interrupted(saved, folder.path) from None
