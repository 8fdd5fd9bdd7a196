"""A run under a `lightning.Trainer` with what ``--trainer.…`` asks for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch import callbacks as theirs
from lightning.pytorch import loggers

from coterie.core.callbacks.contract import RoundCallback
from coterie.core.errors import UserError
from coterie.core.local_training.quiet import quiet
from coterie.core.run.driver import FederatedRun
from coterie.core.run.lightning_module import FederatedModule
from coterie.core.run.trainer_checks import check_callbacks
from coterie.core.settings.sections import TrainerSettings
from coterie.core.tensors.device import devices


def asked_for(settings: TrainerSettings) -> list[theirs.Callback]:
    """Make the callbacks that were named, before anything is written.

    Raises:
        UserError: one cannot be made or cannot work on rounds, or the logger's package is not
            installed.
    """
    if settings.logger != "none":
        with _named(f"trainer.logger {settings.logger}"):
            _LOGGERS[settings.logger](Path(os.devnull))
    made = [_make(name) for name in settings.callbacks]
    check_callbacks(made)
    return made


def fit(
    run: FederatedRun,
    using: Sequence[RoundCallback],
    settings: TrainerSettings,
    more: Sequence[theirs.Callback],
    folder: Path,
    saved: dict[str, Any] | None,
) -> None:
    """Run rounds until the run or the Trainer stops.

    The run and what happens beside the rounds are restored already; Lightning's callbacks, which
    are from `asked_for`, are here. Loggers and Lightning's checkpoints write below the folder.
    """
    with quiet():
        trainer = lightning.Trainer(
            **devices(run.federation.device),
            max_epochs=settings.max_epochs,
            max_time=settings.max_time,
            num_sanity_val_steps=0,
            logger=False if settings.logger == "none" else _LOGGERS[settings.logger](folder),
            enable_checkpointing=any(isinstance(c, theirs.ModelCheckpoint) for c in more),
            enable_progress_bar=False,  # the run has its own
            enable_model_summary=settings.enable_model_summary,
            profiler=settings.profiler,
            default_root_dir=folder,
            callbacks=list(more),
        )
        states = (saved or {}).get("trainer", {})
        for callback in more:
            if callback.state_key in states:
                callback.load_state_dict(states[callback.state_key])
        trainer.fit(FederatedModule(run, using))


_LOGGERS = {
    "csv": lambda folder: loggers.CSVLogger(folder, name="lightning"),
    "tensorboard": lambda folder: loggers.TensorBoardLogger(folder, name="tensorboard"),
    "wandb": lambda folder: loggers.WandbLogger(save_dir=folder, offline=True),
    "mlflow": lambda folder: loggers.MLFlowLogger(tracking_uri=f"file:{folder / 'mlflow'}"),
}


def _make(name: str) -> theirs.Callback:
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # a callback of one's own is a file in this folder
        sys.path.append(os.getcwd())
    with _named(f"trainer.callbacks {name}"):
        made = getattr(import_module(module), attribute)()
    if not isinstance(made, theirs.Callback):
        raise UserError(
            f"'trainer.callbacks {name}' gives a {type(made).__name__}: a callback of Lightning is "
            "needed, a subclass of lightning.Callback"
        )
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
