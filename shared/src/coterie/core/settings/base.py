"""The settings of a run that every paper has, and of the Trainer that drives it. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.core.errors import UserError
from coterie.core.settings.aggregate import AggregateSettings
from coterie.core.settings.sections import (
    EngineSettings,
    LoggerSettings,
    NamedData,
    PrivacySettings,
    RunSettings,
    at_least,
)

_CLIENTS = "is for gradients, which the clients have"
_DATA = "is for data of the Trainer's own, and the clients have theirs"
ELSEWHERE: Mapping[str, str] = {
    "accelerator": "where clients compute is 'engine.device'",
    "accumulate_grad_batches": f"it {_CLIENTS}: set the size of their batches",
    "barebones": "leave out what it does by --logger.wandb off --run.progress false",
    "check_val_every_n_epoch": "rounds are validated by 'validation.every'",
    "default_root_dir": "the folder of runs is 'run.out'",
    "devices": "clients run beside each other by 'engine.workers'",
    "enable_autolog_hparams": "every logger gets the settings",
    "enable_checkpointing": "rounds are kept by 'run.checkpoint_every'",
    "enable_progress_bar": "the bar is shown by 'run.progress'",
    "gradient_clip_algorithm": f"it {_CLIENTS}: they clip by norm, by the 'clip' of a method",
    "gradient_clip_val": f"it {_CLIENTS}: set the 'clip' of their method",
    "limit_predict_batches": f"it {_DATA}: see coterie recommend",
    "limit_test_batches": f"it {_DATA}: set their number",
    "limit_train_batches": f"it {_DATA}: rounds are limited by 'trainer.max_epochs'",
    "limit_val_batches": f"it {_DATA}: validate by 'validation.clients'",
    "log_every_n_steps": "every round is logged; histograms by 'logger.histogram_every'",
    "model_registry": "a run is a folder, 'run.out' and 'run.name'",
    "num_nodes": "a federation is one process here: leave it out",
    "num_sanity_val_steps": "rounds validate by themselves: leave it out",
    "overfit_batches": f"it {_DATA}: leave it out",
    "plugins": "checkpoints and precision are the federation's own: leave it out",
    "precision": "clients compute in 'engine.dtype'",
    "reload_dataloaders_every_n_epochs": f"it {_DATA}: leave it out",
    "strategy": "clients run beside each other by 'engine.workers' or 'engine.processes'",
    "sync_batchnorm": f"it {_CLIENTS}: leave it out",
    "use_distributed_sampler": f"it {_DATA}: leave it out",
    "val_check_interval": "rounds are validated by 'validation.every'",
}
"""Arguments of the Trainer that cannot act on clients, and what does what they would."""


@dataclass(frozen=True)
class TrainerSettings:
    """Lightning's Trainer, which drives the rounds: an epoch, and a step, is a round."""

    logger: tuple[str | dict[str, Any], ...] = ()
    """Loggers of Lightning besides what 'logger' says: tensorboard, mlflow, or a class as in
    callbacks. They write into the run folder."""
    callbacks: tuple[str | dict[str, Any], ...] = ()
    """Callbacks of Lightning: package.module.Class, package.module:function, or the same with
    arguments, as {class_path: EarlyStopping, init_args: {monitor: fed/loss}}. They may monitor
    every column of metrics.csv."""
    fast_dev_run: int = 0
    """Make so many rounds to see that all works, and keep nothing."""
    max_epochs: int = -1
    """Stop after so many rounds, to go on by --resume; -1 for never."""
    min_epochs: int | None = None
    """Rounds before which no callback may stop."""
    max_steps: int = -1
    """The same as max_epochs."""
    min_steps: int | None = None
    """The same as min_epochs."""
    max_time: str | None = None
    """Stop after DD:HH:MM:SS, to go on by --resume."""
    enable_model_summary: bool = False
    """Print Lightning's table of the server's tensors."""
    profiler: Literal["simple", "advanced"] | None = None
    """Print Lightning's profile of the run."""
    deterministic: bool = False
    """Have torch refuse operations that may give other bits; no random number depends on it."""
    benchmark: bool = False
    """Let cuDNN try its algorithms."""
    inference_mode: bool = True
    """Measure without what gradients need; changes no number."""
    detect_anomaly: bool = False
    """Have torch look for NaN in gradients; slow."""

    def __post_init__(self) -> None:
        at_least("trainer.max_epochs", self.max_epochs, -1)
        at_least("trainer.max_steps", self.max_steps, -1)
        for name in ("min_epochs", "min_steps", "fast_dev_run"):
            at_least(f"trainer.{name}", getattr(self, name), 0)
        if self.max_time is not None and not re.fullmatch(r"\d\d:\d\d:\d\d:\d\d", self.max_time):
            raise UserError(
                f"'trainer.max_time' must be DD:HH:MM:SS, as 00:01:30:00, not {self.max_time!r}"
            )
        for name in ("logger", "callbacks"):
            for given in getattr(self, name):
                _check_class(f"trainer.{name}", given)


def _check_class(key: str, given: str | Mapping[str, Any]) -> None:
    """Check the form of a class with arguments.

    Raises:
        UserError: it has another.
    """
    form = "package.module.Class or {class_path: …, init_args: {…}}"
    if isinstance(given, Mapping):
        if "class_path" not in given or given.keys() - {"class_path", "init_args"}:
            raise UserError(f"'{key}' must be {form}, not {dict(given)}")
        if not isinstance(given.get("init_args", {}), Mapping):
            raise UserError(f"'{key}': the init_args of {given['class_path']} must be pairs")
        given = given["class_path"]
    if not isinstance(given, str) or not re.fullmatch(r"[\w.]+(:\w+)?", given):
        raise UserError(f"'{key}' must be {form}, not {given!r}")


# The settings of a run that every paper has. Torch-free.

Reading = Literal["recommended", "literal", "released"]


@dataclass(frozen=True)
class BaseSettings:
    """One run of a paper; a paper's own settings are added by inheritance.

    Example:
        >>> @dataclass(frozen=True)
        ... class Settings(BaseSettings):
        ...     method: Literal["mine", "theirs"] = "mine"
        >>> Settings(rounds=5).engine.dtype
        'float32'
    """

    method: str = ""
    """Method of the paper, or a baseline."""
    reading: Reading = "recommended"
    """recommended: the idea done right; literal: as printed; released: as the public code does."""
    seed: int = 0
    """Seed of everything random."""
    rounds: int = 100
    """Most communication rounds in a block."""
    data: NamedData = field(default_factory=NamedData)
    engine: EngineSettings = field(default_factory=EngineSettings)
    aggregate: AggregateSettings = field(default_factory=AggregateSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    logger: LoggerSettings = field(default_factory=LoggerSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        if self.privacy.at == "server" and self.aggregate.acts:
            raise UserError(
                "'privacy.at' server adds noise to a sum, and 'aggregate.rule' gives none: leave "
                "one of them out"
            )
        if self.engine.name != "in-process" and self.run.checkpoint_every != 1:
            raise UserError(
                "'run.checkpoint_every' must be 1 for clients in processes of their own, as they "
                "can go back by one round only: leave it out"
            )
