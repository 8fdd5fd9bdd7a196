"""`coterie train`: run a paper's experiment under a Lightning Trainer, in a run folder."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback

from coterie.core.callbacks.budget import PrivacyBudget
from coterie.core.callbacks.checkpoints import LAST, AtomicCheckpointIO, Checkpoints
from coterie.core.callbacks.costs import Costs
from coterie.core.callbacks.csv import CsvLog
from coterie.core.callbacks.dashboard import render
from coterie.core.callbacks.progress import RoundProgress
from coterie.core.callbacks.refusals import Refusals
from coterie.core.callbacks.stream import StreamScore
from coterie.core.callbacks.wandb_logger import RunCard, WandbLog
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.files import writing
from coterie.core.registry.papers import Paper, load
from coterie.core.run.console import show_data, show_results
from coterie.core.run.experiment import Experiment
from coterie.core.run.resuming import open_folder
from coterie.core.run.rounds import FederatedModule
from coterie.core.run.runfolder import RunFolder
from coterie.core.run.summary import Summary
from coterie.core.settings.schema import values_of


def train(paper: Paper, settings: Any) -> Path:
    """Train, log, checkpoint and summarise one run; return its folder.

    Args:
        paper: which paper.
        settings: of the paper's settings class.

    Raises:
        UserError: data, settings or the run folder are unusable; says what to do.
    """
    torch.set_num_threads(settings.engine.threads)
    experiment: Experiment[Any] = load(paper.experiment)(settings)
    federation = experiment.federation()
    folder = open_folder(paper, experiment.settings, federation)
    show_data(paper, experiment)
    module = FederatedModule(federation)
    costs = Costs()
    with writing(folder.path, "then go on by --resume"):
        after_rounds = [costs, *callbacks(paper, experiment, federation, folder)]
        fit(module, after_rounds, _resume_from(folder))
        check_accepted(module.history)
        render(folder.path, paper, federation.monitor, f"seed {settings.seed}")
        experiment.finish(module, folder.path)
    folder.write_json("ledger.json", module.ledger.rows())
    summary = Summary(
        rounds=module.round,
        metrics=experiment.final_metrics(module),
        reference=experiment.reference(),
        up_bytes=module.ledger.bytes("up"),
        down_bytes=module.ledger.bytes("down"),
        seconds=costs.seconds,
        notes=experiment.notes(module),
    )
    clients = experiment.client_table(module)
    folder.write_summary(summary)
    if clients:
        folder.write_json("clients.json", clients)
    show_results(folder.path, summary, clients)
    return folder.path


def fit(module: FederatedModule, using: list[Callback], resume_from: Path | None = None) -> None:
    """Run all rounds of a federation.

    Args:
        module: drives the federation.
        using: callbacks, in the order in which they see a finished round.
        resume_from: a checkpoint to go on from.

    Raises:
        UserError: the checkpoint is damaged or of another run.
    """
    with _quiet():
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=-1,  # the server says when a run ends
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=any(isinstance(c, RoundProgress) for c in using),
            enable_model_summary=False,
            callbacks=using,
            plugins=[AtomicCheckpointIO()],
        )
        trainer.fit(module, ckpt_path=resume_from, weights_only=True)


def check_accepted(history: Sequence[dict[str, float]]) -> None:
    """Refuse the result of a run that never accepted an answer: it would be the first model's.

    Args:
        history: scalars of all rounds.

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
    paper: Paper, experiment: Experiment[Any], federation: Federation, folder: RunFolder
) -> list[Callback]:
    """List what else happens after every round; the checkpoint is last, so it holds the others."""
    settings = experiment.settings
    monitor = federation.monitor
    found: list[Callback] = [Refusals()]
    if monitor is not None:
        found.append(StreamScore(monitor))
    if settings.privacy.noise != "none":
        found.append(PrivacyBudget(settings.privacy))
    if settings.run.progress:
        found.append(RoundProgress(federation.rounds, monitor.key if monitor else None))
    found.append(CsvLog(folder.path))
    if settings.logger.wandb != "off":
        config = values_of(settings)
        kinds = [str(config[key]) for key in paper.variant_keys if key != "data.name"]
        method = "-".join([settings.method, *kinds])
        tags = (settings.reading, *kinds)
        card = RunCard(paper.name, method, settings.data.name, settings.seed, tags=tags)
        shown = (monitor, federation.client_columns, paper.keys)
        found.append(WandbLog(settings.logger, folder.path, card, config, *shown))
    found.append(Checkpoints(folder.checkpoints, settings.run.checkpoint_every, monitor))
    return found


def _resume_from(folder: RunFolder) -> Path | None:
    last = folder.checkpoints / LAST
    return last if last.is_file() else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning's advice about hardware, workers and its other products out of the output."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
