"""A federation under `lightning.Trainer`: one training step, and one epoch, is one round.

An epoch is a round because that is when Lightning's own callbacks look at a metric: then
`EarlyStopping`, `ModelCheckpoint` and every logger work as they come. In the order of a round:

1. ``training_step`` runs it;
2. callbacks add to its journal in ``on_train_batch_end`` (`coterie.core.training.callbacks.notes`);
3. the module logs the journal, to loggers and to what monitors a metric;
4. callbacks look at it in ``on_train_epoch_end``, checkpoints last: what they hold was logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

import lightning
import torch
from lightning.pytorch import callbacks as theirs
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader

from coterie.core.errors import UserError
from coterie.core.run.checkpoint import check_settings
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.core.training.callbacks.blocks import Blocks, let_stop
from coterie.core.training.callbacks.checkpoints import RunCheckpointIO
from coterie.core.training.callbacks.notes import Costs, Refusals
from coterie.core.training.callbacks.progress import RoundProgress
from coterie.core.training.checks import check_callbacks, check_data, check_trainer
from coterie.core.training.loggers.rounds import Measured, RoundLogger

_TICK: Any = [torch.zeros(1)]  # a batch of one, so that callbacks need not say so when they log


class FederatedModule(lightning.LightningModule):
    """Drive a federated run by a Trainer; ``max_epochs=-1`` leaves the end to the run itself.

    Every number of a round is logged by its name (``eval/ndcg@20``, ``fed/loss``, ``cost/…``), so
    the Trainer's loggers get it and its callbacks may monitor it. ``trainer.validate`` and ``test``
    measure the state that the run has.

    Args:
        run: what is driven; it says where it stands and keeps the results.
        settings: by dotted key, which every logger gets; by default those of the federation.

    Example:
        module = FederatedModule(FederatedRun(experiment.federation()))
        best = ModelCheckpoint(monitor="eval/ndcg@20", mode="max")
        trainer = lightning.Trainer(max_epochs=-1, callbacks=[best])
        trainer.fit(module)
        trainer.test(module)
    """

    def __init__(self, run: FederatedRun, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.run = run
        self.save_hyperparameters(dict(settings or run.federation.settings or {}))
        self.server = _ServerTensors(run.server_state)
        self._logged = {"step"}
        self._logger_states: dict[str, dict[str, Any]] = {}

    def train_dataloader(self) -> DataLoader[Tensor]:
        """One tick, of the round to come."""
        return _ticks()

    def val_dataloader(self) -> DataLoader[Tensor]:
        """One tick for ``trainer.validate``."""
        return _ticks()

    def test_dataloader(self) -> DataLoader[Tensor]:
        """One tick."""
        return _ticks()

    def predict_dataloader(self) -> DataLoader[Tensor]:
        """One tick."""
        return _ticks()

    def configure_callbacks(self) -> list[theirs.Callback]:
        """Give the Trainer what every federation needs and it has not: notes, progress, blocks.

        Raises:
            UserError: the Trainer is asked for what it cannot do here.
        """
        present: list[theirs.Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        check_trainer(self.trainer)
        check_callbacks(present)
        self._offer_validation(self.trainer.state.fn is not TrainerFn.FITTING)
        if self.trainer.state.fn is TrainerFn.FITTING:
            notes = (Refusals, Costs)
            first: list[theirs.Callback] = [kind() for kind in notes if not _has(present, kind)]
            bar = self.trainer.progress_bar_callback
            if bar is not None and not isinstance(bar, RoundProgress):
                first.append(RoundProgress(instead_of=bar))
            # Before all others, so that these see what is noted; blocks before the checkpoints,
            # which Lightning calls last.
            present[:0] = first
            if not _has(present, Blocks):
                savers = [n for n, one in enumerate(present) if isinstance(one, theirs.Checkpoint)]
                present.insert(min(savers, default=len(present)), Blocks())
        return []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """An optimizer of nothing: Lightning counts its steps, and rounds must count."""
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.0)

    def setup(self, stage: str) -> None:
        """Have every checkpoint of a federation written and read in one way."""
        self.trainer.strategy.checkpoint_io = RunCheckpointIO()

    def on_fit_start(self) -> None:
        """Go on with a run that was complete if more rounds follow; have loggers go on with it.

        A checkpoint is restored by now.
        """
        self.run.reopen()
        for logger in self._round_loggers():
            if type(logger).__name__ in self._logger_states:
                logger.load_state_dict(self._logger_states[type(logger).__name__])
            logger.begin(self.run)

    def on_train_start(self) -> None:
        """Stop at once if the run is complete already.

        Raises:
            UserError: the Trainer was given data.
        """
        check_data(self.trainer.train_dataloader, _TICK)
        if self.run.finished:
            let_stop(self.trainer)

    def on_train_batch_start(self, *_: Any) -> None:
        """Let loggers go: nothing comes to the round before any more."""
        for logger in self._round_loggers():
            logger.end_round()

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        """Run one communication round."""
        self.run.advance()
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.step()

    def on_train_batch_end(self, *_: Any) -> None:
        """Log the round, and tell the Trainer when it was the last."""
        self.log_round(self.run.journal.scalars, self.run.journal.clients)
        if self.run.finished:
            let_stop(self.trainer)

    def on_train_epoch_end(self) -> None:
        """Have what callbacks logged in their own ways stand against the round, too."""
        if self.trainer.callback_metrics.keys() - self._logged:
            self.log("step", float(self.run.round))

    def log_round(self, scalars: Mapping[str, float], clients: Measured) -> None:
        """Log what was measured in the round that was run last, over all and of each client.

        Loggers get them at once, as a checkpoint may be written before Lightning would tell them.
        What monitors a metric finds it where Lightning puts what `log` is given; a call of that
        takes a third of a millisecond, and rounds have dozens of numbers.
        """
        self.trainer.callback_metrics.update(_tensors(scalars))
        self._logged |= scalars.keys()
        for logger in self.loggers:
            logger.log_metrics({**scalars, "block": self.run.block}, step=self.run.round)
            logger.save()
        for logger in self._round_loggers():
            logger.log_clients(clients, self.run.round)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Measure the newest block on its validation data, with the state that the run has.

        Raises:
            UserError: no round was run, or the Trainer was given data.
        """
        self._check_run("validate", self.trainer.val_dataloaders)
        self._log_measured(self.run.revalidate())

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        """Measure the newest block on its test data, with the state that the run has.

        What earlier blocks' tests gave, of their own best rounds, is logged beside it.

        Raises:
            UserError: no round was run, or the Trainer was given data.
        """
        self._check_run("test", self.trainer.test_dataloaders)
        self._log_measured(self.run.earlier_results() | self.run.retest())

    def predict_step(self, *_: Any) -> None:
        """Say who predicts: a run with its data, which has names of users and items.

        Raises:
            UserError: always.
        """
        raise UserError(
            "a federation has no batches to predict: recommend by coterie.load(folder).recommend() "
            "or ask the models that it gives back"
        )

    def teardown(self, stage: str) -> None:
        """Give the Trainer its own bar back."""
        callbacks: list[theirs.Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        callbacks[:] = [
            one for one in callbacks if not (isinstance(one, RoundProgress) and one.gives_back())
        ]

    def __getstate__(self) -> dict[str, Any]:
        """Stay in this process, as what runs here and what a copy would run were two federations.

        Raises:
            UserError: always.
        """
        raise UserError(
            "a federation cannot be copied, nor sent to the processes of a Trainer: give it "
            "devices=1; clients run beside each other by 'engine.workers'"
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the run, and what its loggers must know to go on."""
        checkpoint["federation"] = self.run.to_plain()
        states = {type(one).__name__: one.state_dict() for one in self._round_loggers()}
        checkpoint["loggers"] = {name: state for name, state in states.items() if state}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what `on_save_checkpoint` added.

        Raises:
            UserError: the checkpoint is of another method or backbone, or of other data or
                settings.
        """
        saved = checkpoint.get("federation", {})
        check_settings(saved, self.run.federation)
        self.run.load_plain(saved)
        self._logger_states = checkpoint.get("loggers", {})

    def _offer_validation(self, offered: bool) -> None:
        """Have ``fit`` see no validation of Lightning's: rounds validate by themselves."""
        for name in ("val_dataloader", "validation_step"):
            self.__dict__.pop(name, None)
            if not offered:
                hidden = MethodType(getattr(lightning.LightningModule, name), self)
                self.__dict__[name] = hidden

    def _round_loggers(self) -> list[RoundLogger]:
        return [logger for logger in self.loggers if isinstance(logger, RoundLogger)]

    def _check_run(self, verb: str, loaders: Any) -> None:
        if not self.run.round:
            raise UserError(f"there is nothing to {verb}: no round was run; call trainer.fit first")
        check_data(loaders, _TICK)

    def _log_measured(self, scalars: Mapping[str, float]) -> None:
        self.log_dict(_tensors(scalars), on_step=False, on_epoch=True, batch_size=1)


def _tensors(scalars: Mapping[str, float]) -> dict[str, Tensor]:
    """In float64, as counts of bytes are beyond what float32 holds."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in scalars.items()}


def _ticks() -> DataLoader[Tensor]:
    """Iterate over one tick; with a generator of its own, as a loader draws from the global one."""
    return DataLoader(_TICK, batch_size=None, generator=torch.Generator())


def _has(present: list[theirs.Callback], kind: type) -> bool:
    return any(isinstance(one, kind) for one in present)


class _ServerTensors(torch.nn.Module):
    """The server's first tensors, for Lightning's table of the model.

    They are neither saved (the run's own state is) nor moved, and share the state's memory.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        for path, tensor in tree.tensors(state):
            if tensor.is_floating_point():
                name = path.replace(".", "/")
                self.register_parameter(name or "state", torch.nn.Parameter(tensor.detach()))

    def _save_to_state_dict(self, *_: Any) -> None: ...

    def _load_from_state_dict(self, *_: Any) -> None: ...

    def _apply(self, *_: Any, **__: Any) -> _ServerTensors:
        return self
