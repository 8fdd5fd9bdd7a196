"""Lightning's early stopping and best checkpoint, over a stream of blocks."""

from __future__ import annotations

import math
from typing import Any

import lightning
import torch
from lightning.pytorch import callbacks as theirs

from coterie.core.training.callbacks.notes import StreamScore


class Blocks(theirs.EarlyStopping):
    """Let `EarlyStopping` end a block, not the run, and have it and `ModelCheckpoint` start afresh.

    The validation data of each block are others, so its scores cannot be compared with those of
    the block before. What else stops a Trainer (its time, a callback of the user's) leaves the run
    unfinished, to go on later.

    One itself, as Lightning calls these when all is logged, in their order, and checkpoints later:
    it stands behind the others, so that checkpoints hold what came of them.
    """

    def __init__(self) -> None:
        super().__init__(monitor="")

    def setup(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is nothing to monitor."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the run knows its blocks."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing."""

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Have callbacks start afresh with each block but the first."""
        if pl_module.run.round and not pl_module.run.block_open:
            for callback in _callbacks(trainer):
                _restart(callback)
        for stopper in _stoppers(trainer):
            stopper.stopped_epoch = -1  # Lightning's own first value is also that of a first round

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """End the block if one of them wants to stop."""
        run, done = pl_module.run, trainer.current_epoch
        if run.finished or not any(one.stopped_epoch == done for one in _stoppers(trainer)):
            return
        if done + 1 < (trainer.min_epochs or 0) or trainer.global_step < (trainer.min_steps or 0):
            return
        trainer.should_stop = False
        if run.block_open:
            _close_block(trainer, pl_module)
        if run.finished:
            let_stop(trainer)


def _close_block(trainer: lightning.Trainer, module: Any) -> None:
    """End the block, and log what its end noted."""
    journal = module.run.journal
    scalars, clients = set(journal.scalars), set(journal.clients)
    module.run.close_block()
    for callback in _callbacks(trainer):
        if isinstance(callback, StreamScore):
            callback.note(module.run)
    module.log_round(
        {name: value for name, value in journal.scalars.items() if name not in scalars},
        {name: pair for name, pair in journal.clients.items() if name not in clients},
    )


def _restart(callback: theirs.Callback) -> None:
    if isinstance(callback, theirs.EarlyStopping) and not isinstance(callback, Blocks):
        worst = math.inf if callback.mode == "min" else -math.inf
        callback.wait_count, callback.best_score = 0, torch.tensor(worst)
    if isinstance(callback, theirs.ModelCheckpoint) and callback.monitor is not None:
        # Files of the blocks before stay.
        callback.best_k_models = {}
        callback.best_model_path = callback.kth_best_model_path = ""
        callback.best_model_score = callback.current_score = None


def _callbacks(trainer: lightning.Trainer) -> list[theirs.Callback]:
    found: list[theirs.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return found


def _stoppers(trainer: lightning.Trainer) -> list[theirs.EarlyStopping]:
    found = [one for one in _callbacks(trainer) if isinstance(one, theirs.EarlyStopping)]
    return [one for one in found if not isinstance(one, Blocks)]


def let_stop(trainer: lightning.Trainer) -> None:
    """Stop after this round, as the run has come to its end, whatever least number was asked."""
    trainer.fit_loop.min_epochs = None
    trainer.fit_loop.epoch_loop.min_steps = None
    trainer.should_stop = True
