"""`coterie train`: run a paper's experiment in a run folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from coterie.core.callbacks.budget import PrivacyBudget
from coterie.core.callbacks.checkpoints import LAST, Checkpoints, read_checkpoint
from coterie.core.callbacks.contract import RoundCallback, restore
from coterie.core.callbacks.costs import Costs
from coterie.core.callbacks.csv import CsvLog
from coterie.core.callbacks.dashboard import Curves
from coterie.core.callbacks.progress import RoundProgress
from coterie.core.callbacks.refusals import Refusals
from coterie.core.callbacks.stream import StreamScore
from coterie.core.callbacks.transcript import TranscriptFile
from coterie.core.callbacks.wandb_logger import RunCard, WandbLog
from coterie.core.data.interactions.dropped import in_words
from coterie.core.errors import Interrupted, UserError
from coterie.core.federation.federation import Federation
from coterie.core.federation.selection import Selecting, unmeasured
from coterie.core.files import write_json, writing
from coterie.core.kernels import switch
from coterie.core.privacy.build import remarks
from coterie.core.registry.papers import Paper, load
from coterie.core.run.console import show_data, show_results, show_stopped
from coterie.core.run.driver import FederatedRun
from coterie.core.run.estimate import check
from coterie.core.run.experiment import Experiment
from coterie.core.run.resuming import open_folder
from coterie.core.run.runfolder import RunFolder, Summary
from coterie.core.settings.schema import values_of


def train(paper: Paper, settings: Any) -> Path:
    """Train, log, checkpoint and summarise one run of a paper; return its folder.

    Raises:
        UserError: data, settings or the run folder are unusable; says what to do.
    """
    torch.set_num_threads(settings.engine.threads)
    switch.allow(settings.engine.kernels == "auto")
    experiment: Experiment[Any] = load(paper.experiment)(settings)
    check(experiment.needs())
    federation = experiment.federation()
    asked = settings.trainer
    trainer = import_module("coterie.core.run.trainer") if asked.is_asked_for else None
    theirs = [] if trainer is None else trainer.asked_for(asked)
    with open_folder(paper, experiment.settings, federation) as folder:
        show_data(paper, experiment)
        run, costs = FederatedRun(federation), Costs()
        using = callbacks(paper, experiment, federation, folder, costs)
        with _interruptible(folder), writing(folder.path, "then go on by --resume"):
            saved = resume(run, using, folder.checkpoints / LAST)
            if trainer is None:
                fit(run, using)
            else:
                trainer.fit(run, using, asked, theirs, folder.path, saved)
            check_accepted(run.history)
            if not run.finished:
                show_stopped(folder.path, run.round)
                return folder.path
            experiment.finish(run, folder.path)
        _summarise(experiment, run, folder, costs)
    return folder.path


def _summarise(
    experiment: Experiment[Any], run: FederatedRun, folder: RunFolder, costs: Costs
) -> None:
    """Write the numbers of a finished run, and print them."""
    federation = run.federation
    write_json(folder.path / "ledger.json", run.ledger.rows())
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
            *remarks(experiment.settings.privacy, federation.client.steps()),
        ],
        left_out=in_words(experiment.left_out()),
    )
    clients = experiment.client_table(run)
    folder.write_summary(summary)
    if clients:
        write_json(folder.path / "clients.json", clients)
    show_results(folder.path, replace(summary, metrics=experiment.shown(summary.metrics)), clients)


def _validation(federation: Federation) -> list[str]:
    """Say by what rounds were chosen, if not by all rounds and clients."""
    if not isinstance(federation.server, Selecting):
        return []
    return federation.server.remarks(max(len(block.ids) for block in federation.blocks))


def _unmeasured(run: FederatedRun) -> list[str]:
    monitor = run.federation.monitor
    return [] if monitor is None else unmeasured(run.history, run.results, monitor)


def fit(run: FederatedRun, using: Sequence[RoundCallback] = ()) -> None:
    """Run all rounds of a federation that are left, with what happens beside them in this order.

    A Trainer would do no more, at 6 s of imports.
    """
    try:
        run.reopen()
        for callback in using:
            callback.start(run)
        while not run.finished:
            for callback in using:
                callback.before_round(run)
            run.advance()
            for callback in using:
                callback.note(run)
            for callback in using:
                callback.write(run)
        for callback in using:
            callback.end(run)
    except BaseException:
        for callback in using:
            callback.failed(run)
        raise


def resume(run: FederatedRun, using: Sequence[RoundCallback], last: Path) -> dict[str, Any] | None:
    """Restore a run, and what happens beside it, from its last checkpoint; None if it has none.

    Raises:
        UserError: the checkpoint is damaged or of another run.
    """
    if not last.is_file():
        return None
    saved = read_checkpoint(last)
    run.load_plain(saved["federation"])
    restore(using, saved["callbacks"])
    return saved


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


def callbacks(
    paper: Paper,
    experiment: Experiment[Any],
    federation: Federation,
    folder: RunFolder,
    costs: Costs,
) -> list[RoundCallback]:
    """List what happens beside the rounds; the checkpoint, which is last, holds all others."""
    settings = experiment.settings
    monitor = federation.monitor
    found: list[RoundCallback] = [costs, Refusals()]
    if monitor is not None:
        found.append(StreamScore(monitor))
    if settings.privacy.noise != "none":
        found.append(PrivacyBudget(settings.privacy))
    if settings.run.progress:
        found.append(RoundProgress(federation.rounds, monitor.key if monitor else None))
    if settings.logger.transcript:
        found.append(TranscriptFile(folder.path))
    found.append(CsvLog(folder.path))
    found.append(Curves(folder.path, paper, monitor, f"seed {settings.seed}"))
    if settings.logger.wandb != "off":
        config = values_of(settings)
        kinds = [str(config[key]) for key in paper.named_by(settings.method)]
        method = "-".join([settings.method, *kinds])
        tags = (settings.reading, *kinds)
        card = RunCard(paper.name, method, settings.data.name, settings.seed, tags=tags)
        shown = (monitor, federation.client_columns, paper.keys)
        found.append(WandbLog(settings.logger, folder.path, card, config, *shown))
    every = settings.run.checkpoint_every
    found.append(Checkpoints(folder.checkpoints, every, monitor, tuple(found)))
    return found


@contextmanager
def _interruptible(folder: RunFolder) -> Iterator[None]:
    """Tell an interruption whether it left a checkpoint; Lightning turns one into exit(1)."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and not isinstance(end.__context__, KeyboardInterrupt):
            raise
        saved = (folder.checkpoints / LAST).is_file()
        raise Interrupted(saved, folder.path) from None
