"""What a `lightning.Trainer` may be asked for, when what it drives are rounds of a federation.

Rounds compute, average and step by themselves; the Trainer has one tick a round, an optimizer of
nothing, and no gradients. What would act on these in the belief that they are the training is
refused in one line, before the first round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning.pytorch import callbacks as theirs
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import SingleDeviceStrategy

from coterie.core.errors import UserError
from coterie.core.training.callbacks.checkpoints import RunCheckpointIO

_AVERAGES = "it averages the module's own parameters, which rounds do not train"
_PARAMETERS = "it changes the module's own parameters, which rounds do not train"
_BATCHES = "its batches are ticks, one a round, and the data are the clients'"
_OPTIMIZER = "its optimizer is one of nothing: learning rates are the clients'"
_STEPS = "steps are made by the clients, not by the Trainer"

REFUSED = {
    "BackboneFinetuning": _PARAMETERS,
    "BaseFinetuning": _PARAMETERS,
    "BasePredictionWriter": "predictions are the clients': `coterie recommend` has them",
    "BatchSizeFinder": _BATCHES,
    "EMAWeightAveraging": _AVERAGES,
    "GradientAccumulationScheduler": _STEPS,
    "LearningRateFinder": _OPTIMIZER,
    "LearningRateMonitor": _OPTIMIZER,
    "ModelPruning": _PARAMETERS,
    "QuantizationAwareTraining": _PARAMETERS,
    "SpikeDetection": "a round gives the Trainer no loss; `fed/loss` is among what is logged",
    "StochasticWeightAveraging": _AVERAGES,
    "ThroughputMonitor": _BATCHES,
    "WeightAveraging": _AVERAGES,
}
"""Callbacks of Lightning that cannot work, and why; what is made from them neither."""

_OF_GRADIENTS = (
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
)


def check_callbacks(callbacks: Iterable[theirs.Callback]) -> None:
    """Refuse callbacks that would act on parameters, gradients or batches that are not there.

    Raises:
        UserError: there is one; says why.
    """
    for callback in callbacks:
        if why := _obstacle(callback):
            raise UserError(
                f"the callback {type(callback).__name__} cannot work on a federation: {why}; "
                "leave it out"
            )


def check_objects(name: str, given: Any, kind: type) -> None:
    """Check that an argument is a list of a caller's own objects.

    Args:
        name: of the argument, ``callbacks`` or ``loggers``.
        given: its value.
        kind: class of Lightning that they are made from.

    Raises:
        UserError: it is something else, or one of them is.
    """
    what = f"{name} are a list of objects of Lightning's {kind.__name__}"
    if isinstance(given, kind):
        raise UserError(f"{what}: give {name}=[...] with the {type(given).__name__} in it")
    if not isinstance(given, list | tuple):
        raise UserError(f"{what}, not a {type(given).__name__}")
    for one in given:
        if isinstance(one, type) and issubclass(one, kind):
            raise UserError(f"{what}, and {one.__name__} is a class: make one, {one.__name__}()")
        if not isinstance(one, kind):
            raise UserError(f"{what}, and one is a {type(one).__name__}")


def _obstacle(callback: theirs.Callback) -> str | None:
    for kind in type(callback).__mro__:
        if kind.__name__ in REFUSED and kind.__module__.split(".")[0].endswith("lightning"):
            return REFUSED[kind.__name__]
    for hook in _OF_GRADIENTS:
        own, base = getattr(callback, hook, None), getattr(theirs.Callback, hook)
        # LambdaCallback keeps the functions that it was given on the instance.
        if own is not None and getattr(own, "__func__", own) is not base:
            return f"it looks at gradients ({hook}), which only the clients have"
    after_rounds = getattr(callback, "_check_on_train_epoch_end", None)
    if isinstance(callback, theirs.EarlyStopping) and after_rounds is False:
        return "it looks after Lightning's own validation, which there is none of; it may look " + (
            "after rounds, by check_on_train_epoch_end=True"
        )
    if isinstance(callback, theirs.ModelCheckpoint):
        return _obstacle_to_saving(callback)
    return None


def _obstacle_to_saving(callback: theirs.ModelCheckpoint) -> str | None:
    if callback._save_on_train_epoch_end is False:
        return "it saves after Lightning's own validation, which there is none of; it may save " + (
            "after rounds, by save_on_train_epoch_end=True"
        )
    by_step = callback._every_n_train_steps or callback._train_time_interval is not None
    if by_step and callback.monitor is not None:
        return (
            f"by steps or time it sees '{callback.monitor}' of the round before; it may save by "
            "every_n_epochs"
        )
    return None


def check_trainer(trainer: Any) -> None:
    """Refuse arguments of a Trainer that would have the rounds run twice, not at all, or unseen.

    Raises:
        UserError: there is one; names it.
    """
    if trainer.world_size > 1:
        raise UserError(
            f"the Trainer has {trainer.world_size} processes, and each would run the whole "
            "federation: give it devices=1; clients run beside each other by 'engine.workers'"
        )
    if not isinstance(trainer.strategy, SingleDeviceStrategy):
        raise UserError(
            f"the Trainer's strategy {type(trainer.strategy).__name__} is for several devices: "
            "leave it out; clients run beside each other by 'engine.workers'"
        )
    if trainer.precision != "32-true":
        raise UserError(
            f"the Trainer's precision '{trainer.precision}' has no effect on clients: leave it "
            "out; theirs is 'engine.dtype'"
        )
    if trainer.gradient_clip_val:
        raise UserError(
            "the Trainer has no gradients to clip: leave 'gradient_clip_val' out; clients clip by "
            "the 'clip' of their method"
        )
    if trainer.accumulate_grad_batches != 1:
        raise UserError(
            "the Trainer has no gradients to accumulate: leave 'accumulate_grad_batches' out; set "
            "the size of the clients' batches"
        )
    plugin = trainer.strategy.checkpoint_io
    if type(plugin) not in (TorchCheckpointIO, RunCheckpointIO):
        raise UserError(
            f"checkpoints of a federation are written in one way: leave {type(plugin).__name__} out"
        )
    if getattr(trainer.lightning_module, "_compiler_ctx", None) is not None:
        raise UserError("a federation is no module for torch.compile: give it as it is")
    name = {"fit": "train", "validate": "val", "test": "test"}.get(str(trainer.state.fn.value))
    if name is not None and getattr(trainer, f"limit_{name}_batches") == 0:
        raise UserError(f"'limit_{name}_batches' 0 leaves nothing to do: leave it out")
    if trainer.check_val_every_n_epoch != 1 or trainer.val_check_interval not in (1.0, None):
        raise UserError(
            "'check_val_every_n_epoch' and 'val_check_interval' are of Lightning's own validation, "
            "which there is none of: leave them out; rounds are validated by 'validation.every'"
        )


def check_data(loader: Any, own: Any) -> None:
    """Refuse data that were given to the Trainer: the clients have theirs.

    Args:
        loader: what the Trainer iterates over.
        own: the data set of the module's own loader.

    Raises:
        UserError: it is another one.
    """
    if getattr(loader, "dataset", None) is not own:
        raise UserError(
            "the Trainer was given data, and a federation's are with its clients: leave "
            "'dataloaders' and 'datamodule' out"
        )
