"""Rounds under a `lightning.Trainer`: of one's own run, or of a command with ``--trainer.…``."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch import callbacks as theirs
from lightning.pytorch import loggers

from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.base import TrainerSettings
from coterie.core.tensors.device import devices
from coterie.core.terminal import quiet
from coterie.core.training.checks import check_callbacks
from coterie.core.training.module import FederatedModule

_AS_THEY_ARE = (
    "max_epochs",
    "min_epochs",
    "max_steps",
    "min_steps",
    "max_time",
    "fast_dev_run",
    "enable_model_summary",
    "profiler",
    "benchmark",
    "inference_mode",
    "detect_anomaly",
)


def fit(
    run: FederatedRun | FederatedModule,
    callbacks: Sequence[theirs.Callback] = (),
    loggers: Sequence[loggers.Logger] = (),
    settings: TrainerSettings | None = None,
    ckpt_path: Path | None = None,
    folder: Path | None = None,
) -> None:
    """Run all rounds that are left by a quiet `lightning.Trainer`, until it or the run stops.

    Args:
        run: what is run, or the module that drives it.
        callbacks: of Lightning; checkpoints last.
        loggers: of Lightning.
        settings: what else the Trainer is asked for.
        ckpt_path: checkpoint from which to go on.
        folder: into which it writes what it would write into the working directory.

    Raises:
        UserError: as the run, or the Trainer is asked for what it cannot do here.

    Example:
        run = FederatedRun(experiment.federation())
        fit(run)
        print(run.results)
    """
    module = FederatedModule(run) if isinstance(run, FederatedRun) else run
    asked = settings or TrainerSettings()
    options: dict[str, Any] = {name: getattr(asked, name) for name in _AS_THEY_ARE}
    if asked.deterministic:  # False would switch off what the caller has switched on
        options["deterministic"] = True
    with quiet(), _signals_as_they_were():
        trainer = lightning.Trainer(
            **devices(module.run.federation.device),
            **options,
            callbacks=list(callbacks),
            logger=list(loggers) or False,
            enable_checkpointing=any(isinstance(one, theirs.Checkpoint) for one in callbacks),
            enable_progress_bar=any(isinstance(one, theirs.ProgressBar) for one in callbacks),
            num_sanity_val_steps=0,
            default_root_dir=folder,
        )
        trainer.fit(module, ckpt_path=ckpt_path)


def asked_callbacks(settings: TrainerSettings) -> list[theirs.Callback]:
    """Make the callbacks that were named, before anything is written.

    Raises:
        UserError: one cannot be made or cannot work on rounds, or a logger's package is not
            installed.
    """
    for given in settings.logger:
        _logger(given, Path(os.devnull))
    made = [
        _made(given, "trainer.callbacks", theirs.Callback, "lightning.pytorch.callbacks", {})
        for given in settings.callbacks
    ]
    check_callbacks(made)
    return made


def asked_loggers(settings: TrainerSettings, folder: Path) -> list[loggers.Logger]:
    """Make the loggers that were named; they write into the run folder."""
    return [_logger(given, folder) for given in settings.logger]


Class = str | Mapping[str, Any]


def _logger(given: Class, folder: Path) -> loggers.Logger:
    short: dict[str, tuple[str, dict[str, Any]]] = {
        "tensorboard": ("TensorBoardLogger", {"save_dir": folder, "name": "tensorboard"}),
        "mlflow": ("MLFlowLogger", {"tracking_uri": f"file:{folder / 'mlflow'}"}),
    }
    name = given if isinstance(given, str) else given["class_path"]
    if name in short:
        class_path, usual = short[name]
        more = {} if isinstance(given, str) else given.get("init_args", {})
        given = {"class_path": class_path, "init_args": {**usual, **more}}
    default = {"save_dir": folder}
    return _made(given, "trainer.logger", loggers.Logger, "lightning.pytorch.loggers", default)


def _made(given: Class, flag: str, kind: type, home: str, default: dict[str, Any]) -> Any:
    """Make an object of a class that is named by its path, or by its name in Lightning's module."""
    path = given if isinstance(given, str) else given["class_path"]
    arguments = {} if isinstance(given, str) else dict(given.get("init_args", {}))
    separator = ":" if ":" in path else "."
    module, _, attribute = path.rpartition(separator)
    if os.getcwd() not in sys.path:  # one of the user's own is a file in this folder
        sys.path.append(os.getcwd())
    with _named(f"{flag} {path}"):
        maker = getattr(import_module(module or home), attribute)
        taken = inspect.signature(maker).parameters
        made = maker(**{**{n: v for n, v in default.items() if n in taken}, **arguments})
    if not isinstance(made, kind):
        needed = f"a {kind.__name__.lower()} of Lightning is needed, a subclass of {kind.__name__}"
        raise UserError(f"'{flag} {path}' gives a {type(made).__name__}: {needed}")
    return made


@contextmanager
def _named(flag: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever code of the user's own raises
        missing = getattr(error, "name", None) if isinstance(error, ImportError) else None
        hint = f"install {missing}" if missing else "see its documentation"
        raise UserError(
            f"'{flag}' cannot be made ({type(error).__name__}: {error}): {hint}"
        ) from error


@contextmanager
def _signals_as_they_were() -> Iterator[None]:
    """Give Ctrl-C back, which Lightning leaves switched off after an interruption."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
