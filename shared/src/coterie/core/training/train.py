"""`coterie train`: run a paper's experiment in a run folder, and say what came of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import callbacks as theirs
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from coterie.core.data.interactions.interactions import in_words
from coterie.core.errors import Interrupted, UserError
from coterie.core.federation.federation import Federation
from coterie.core.federation.selection import Selecting, unmeasured, untrained
from coterie.core.files import write_json, writing
from coterie.core.kernels import switch
from coterie.core.privacy.build import remarks
from coterie.core.registry.papers import Paper, heavy, load
from coterie.core.run.about import write_about, write_measured
from coterie.core.run.checkpoint import LAST, check_folder
from coterie.core.run.dashboard import titled
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import Experiment, check
from coterie.core.run.lasting import MORE, has_more
from coterie.core.run.lock import held
from coterie.core.run.origin import commits
from coterie.core.run.runfolder import RunFolder, Summary, resumable
from coterie.core.run.simulated import CLIENTS, in_processes, looked_into, read_run
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
from coterie.core.training.loggers.wandb import RunCard, wandb_logger
from coterie.core.training.module import FederatedModule
from coterie.core.training.shown import show_data, show_growth, show_results, show_stopped
from coterie.core.training.trainer import asked_callbacks, asked_loggers, fit


@contextmanager
def open_folder(paper: Paper, settings: Any, federation: Federation) -> Iterator[RunFolder]:
    """Open the run to resume, or make a new folder, and keep others from training there meanwhile.

    See `RunFolder.for_settings`. A complete run that gets more rounds, or more blocks, is an
    unfinished one from then on.

    Raises:
        UserError: as there, or the run cannot go on with so many rounds or with these data, or
            another process trains it; the folder is as it was.
    """
    if not settings.run.resume:
        folder = RunFolder.create(paper, settings)
        with held(folder.path):
            yield folder
        return
    path = resumable(paper, settings)
    with held(path):
        RunFolder.open(path, settings)
        then, now = values_of(RunFolder.open(path).settings), values_of(settings)
        more = then["rounds"] != now["rounds"] and reopened(federation, path, now["rounds"])
        if has_more(then, now):
            check_grown(settings.engine.name, federation, path)
            show_growth(path, now[MORE][len(then[MORE]) :])
            more = True
        if more:
            summary = path / "summary.json"
            with writing(summary):
                summary.unlink(missing_ok=True)
        yield RunFolder.for_settings(paper, settings)


def check_grown(engine: str, federation: Federation, path: Path) -> None:
    """Check that a run may go on with data that have got more blocks.

    Raises:
        UserError: its clients are in folders of their own, which hold the data that there were; or
            its checkpoint is damaged, or of other data than the first blocks.
    """
    if engine != "in-process" or (path / CLIENTS).is_dir():
        raise UserError(
            f"cannot add data to {path}: clients in processes of their own keep the data that they "
            "were started with; leave 'engine.name' at in-process, or start a new run with all "
            "files, by --data.more"
        )
    check_folder(path, federation)


def reopened(federation: Federation, path: Path, rounds: int) -> bool:
    """Check that a run may go on with another number of rounds; say whether it was complete.

    Raises:
        UserError: it may not, or its checkpoint is damaged or of another run.
    """
    last = path / "checkpoints" / LAST
    if not last.is_file():
        return False
    run = FederatedRun(federation)
    run.load_plain(read_run(last)["federation"])
    done = run.finished
    why = _obstacle(run, rounds)
    if why is not None:
        flag = "" if done else "leave the flag out, or "
        raise UserError(
            f"cannot resume {path} with 'rounds' {rounds}: {why}; {flag}start a new run without "
            "--resume"
        )
    return run.reopened


def _obstacle(run: FederatedRun, rounds: int) -> str | None:
    """What is against another number of rounds; a complete run is reopened if there is nothing."""
    complete = run.finished
    try:
        run.reopen()
        run.federation.server.change_rounds(run.server_state, run.block_history, rounds)
    except UserError as error:
        return str(error)
    if run.block_open and not complete and run.ends_here():
        return f"it has done {run.block_round} already"
    if run.finished:
        return f"it came to its end by itself in round {run.round}, more change nothing"
    if run.block > 0 or (run.block == 0 and not run.block_open):
        return "earlier blocks had another number"
    return None


# `coterie train`: run a paper's experiment in a run folder.


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
    with _opened(paper, experiment.settings, federation) as folder:
        show_data(paper, experiment)
        costs = Costs()
        beside = [costs, GivenAgain(), *_beside(paper, experiment, federation, folder), *own]
        beside.append(_checkpoints(folder, experiment.settings, federation))
        with _interruptible(folder), writing(folder.path, "then go on by --resume"):
            with _reached(experiment, federation, folder.path) as reached:
                run = FederatedRun(reached)
                write_about(folder.path, experiment, run.bound, federation.monitor)
                fit(
                    FederatedModule(run, values_of(experiment.settings)),
                    beside,
                    [*_loggers(paper, experiment, run, folder), *loggers],
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
        _summarise(experiment, run, folder, costs)
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
    experiment: Experiment[Any], run: FederatedRun, folder: RunFolder, costs: Costs
) -> None:
    """Write the numbers of a finished run, and print them."""
    federation = run.federation
    write_json(folder.path / "ledger.json", run.ledger.rows())
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
        card = RunCard(paper.name, method, settings.data.name, settings.seed, tags, origin)
        shown = (federation.monitor, federation.client_columns, paper.keys)
        if (logger := wandb_logger(settings.logger, folder.path, card, *shown)) is not None:
            found.append(logger)
    return [*found, *asked_loggers(settings.trainer, folder.path)]


def _last(folder: RunFolder) -> Path | None:
    """The checkpoint to go on from; None for a run that has none."""
    last = folder.checkpoints / LAST
    return last if last.is_file() else None


@contextmanager
def _opened(paper: Paper, settings: Any, federation: Federation) -> Iterator[RunFolder]:
    """Open the run folder; one that is gone afterwards where nothing is to be kept."""
    if not settings.trainer.fast_dev_run:
        with open_folder(paper, settings, federation) as folder:
            yield folder
        return
    if settings.run.resume:
        raise UserError("'trainer.fast_dev_run' keeps nothing, so there is no run to resume")
    with tempfile.TemporaryDirectory() as name:
        section = replace(settings.run, out=name, name="fast_dev_run")
        with open_folder(paper, replace(settings, run=section), federation) as folder:
            yield folder


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
