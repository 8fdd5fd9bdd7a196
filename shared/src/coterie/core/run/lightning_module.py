"""A federation under `lightning.Trainer`: one training step, and one epoch, is one round.

An epoch is a round because that is when Lightning's own callbacks look at a metric and when its
loggers write: `EarlyStopping`, `ModelCheckpoint` and every logger then work as they come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning
import torch
from lightning.pytorch import callbacks as theirs
from torch import Tensor
from torch.utils.data import DataLoader

from coterie.core.callbacks.checkpoints import Checkpoints
from coterie.core.callbacks.contract import RoundCallback, restore, states
from coterie.core.callbacks.costs import Costs
from coterie.core.callbacks.progress import RoundProgress
from coterie.core.callbacks.refusals import Refusals
from coterie.core.errors import UserError
from coterie.core.run.bound import check_settings
from coterie.core.run.driver import FederatedRun
from coterie.core.run.trainer_checks import check_callbacks, check_data, check_trainer, let_stop
from coterie.core.tensors import tree
from coterie.core.tensors.entries import inline

_TICK: Any = [torch.zeros(1)]  # a batch of one, so that callbacks need not say so when they log


class FederatedModule(lightning.LightningModule):
    """Drive a federated run by a Trainer; ``max_epochs=-1`` leaves the end to the run itself.

    Every number of a round is logged by its name (``eval/ndcg@20``, ``fed/loss``, ``cost/…``), so
    the Trainer's loggers get it and its callbacks may monitor it. ``trainer.test`` measures the
    state that the run has.

    Args:
        run: what is driven; it says where it stands and keeps the results.
        callbacks: happen beside the rounds; by default costs and refused answers are noted.

    Example:
        module = FederatedModule(FederatedRun(experiment.federation()))
        best = ModelCheckpoint(monitor="eval/ndcg@20", mode="max")
        trainer = lightning.Trainer(max_epochs=-1, callbacks=[best])
        trainer.fit(module)
        trainer.test(module)
    """

    def __init__(self, run: FederatedRun, callbacks: Sequence[RoundCallback] | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.run = run
        self.beside = [Refusals(), Costs()] if callbacks is None else list(callbacks)
        self.server = _ServerTensors(run.server_state)

    def train_dataloader(self) -> DataLoader[Tensor]:
        """One tick, of the round to come."""
        return DataLoader(_TICK, batch_size=None)

    def test_dataloader(self) -> DataLoader[Tensor]:
        """One tick."""
        return DataLoader(_TICK, batch_size=None)

    def configure_callbacks(self) -> list[theirs.Callback]:
        """Write what the rounds noted after all else that happens in a round.

        Raises:
            UserError: the Trainer is asked for what it cannot do here.
        """
        present = self.trainer.callbacks  # type: ignore[attr-defined]
        check_trainer(self.trainer)
        check_callbacks(present)
        if any(isinstance(one, _Beside) and one.module is self for one in present):
            return []  # this Trainer has fitted the module before
        return [_Beside(self)]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """An optimizer of nothing: Lightning counts its steps, and rounds must count."""
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.0)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        """Run one communication round, log it, and tell the Trainer when it was the last."""
        for callback in self.beside:
            callback.before_round(self.run)
        self.run.advance()
        for callback in self.beside:
            callback.note(self.run)
        # Loggers put it on the x axis in place of their own count, which starts at 0.
        self._log_all({**self.run.journal.scalars, "block": self.run.block, "step": self.run.round})
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.step()
        if self.run.finished:
            let_stop(self.trainer)

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        """Measure the newest block on its test data, with the state that the run has.

        Raises:
            UserError: no round was run, or the Trainer was given data.
        """
        if not self.run.round:
            raise UserError("there is nothing to test: no round was run; call trainer.fit first")
        check_data(self.trainer.test_dataloaders, _TICK)
        self._log_all(self.run.retest())

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
        """Add the run, and what happens beside it."""
        checkpoint["federation"] = inline(self.run.to_plain())
        checkpoint["beside"] = states(self.beside)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what `on_save_checkpoint` added.

        Raises:
            UserError: the checkpoint is of another method or backbone, or of other data or
                settings.
        """
        saved = checkpoint.get("federation", {})
        check_settings(saved, self.run.federation)
        self.run.load_plain(saved)
        restore(self.beside, checkpoint.get("beside", {}))

    def _log_all(self, scalars: Mapping[str, float]) -> None:
        # In float64, as counts of bytes are beyond what float32 holds.
        values = {name: torch.tensor(value, dtype=torch.float64) for name, value in scalars.items()}
        self.log_dict(values, on_step=False, on_epoch=True, batch_size=1)


class _Beside(theirs.Checkpoint):
    """Call what happens beside the rounds. A `Checkpoint`, as Lightning calls these last."""

    def __init__(self, module: FederatedModule) -> None:
        self.module, self.run = module, module.run
        self.bar: theirs.ProgressBar | None = None  # the Trainer's, which ours stands for
        self.shown: RoundProgress | None = None

    def on_fit_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Show rounds in place of epochs; go on with a run that was complete."""
        bar = trainer.progress_bar_callback
        if bar is not None and getattr(bar, "is_enabled", True):
            bar.disable()
            federation, monitor = self.run.federation, self.run.federation.monitor
            metric = None if monitor is None else monitor.key
            self.bar, self.shown = bar, RoundProgress(federation.rounds, metric)
            self.module.beside.append(self.shown)
        self.run.reopen()

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Start; stop at once if the run is complete already.

        Raises:
            UserError: the Trainer was given data.
        """
        check_data(trainer.train_dataloader, _TICK)
        for callback in self.module.beside:
            if isinstance(callback, Checkpoints):
                callback.more = lambda: {"trainer": _states(trainer)}
            callback.start(self.run)
        if self.run.finished:
            let_stop(trainer)

    def on_train_epoch_end(self, *_: Any) -> None:
        """Write the round."""
        for callback in self.module.beside:
            callback.write(self.run)

    def on_train_end(self, *_: Any) -> None:
        """End."""
        for callback in self.module.beside:
            callback.end(self.run)

    def on_exception(self, *_: Any) -> None:
        """End, as what failed."""
        for callback in self.module.beside:
            callback.failed(self.run)

    def teardown(self, *_: Any, **__: Any) -> None:
        """Give the Trainer its own bar back."""
        if self.bar is not None and self.shown is not None:
            self.bar.enable()
            self.module.beside.remove(self.shown)
            self.bar = self.shown = None


def _states(trainer: lightning.Trainer) -> dict[str, Any]:
    callbacks: list[theirs.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    found = {callback.state_key: callback.state_dict() for callback in callbacks}
    return {key: state for key, state in found.items() if state}


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
