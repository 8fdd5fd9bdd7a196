"""A `LightningModule` as a module with a loss and measures, in the core's sense."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import lightning
import torch
from torch import Tensor, nn

from coterie.core.errors import Unstackable, UserError
from coterie.core.front.lightning_part import as_client, of_no_logger
from coterie.core.front.partition import BatchForm
from coterie.core.front.step_logs import (
    CLIENT,
    Heard,
    Seen,
    StepLogs,
    as_new,
    listening,
    metrics_in,
    number,
    put_together,
    settle_metrics,
)
from coterie.core.local_training.losses import Batch, what_it_is
from coterie.core.metrics.monitor import Monitor

PART = "front.part"
"""Field of samples to measure on: 1 = validation, 2 = test."""
STEPS = {1: "validation_step", 2: "test_step"}
_METERED = "front.metered"
"""Whether a module has metric objects, which are not looked for at every step."""


@dataclass(frozen=True)
class Taken:
    """A batch on its way to a step.

    Attributes:
        batch: as the step takes it.
        client: whose training step it is; None where it is none.
        part: of the samples, see `PART`; 0 = neither.
    """

    batch: Any
    client: int | None
    part: int


@dataclass(frozen=True)
class AsTaken:
    """Makes of fields what `Adapted` takes.

    Attributes:
        form: of the module's own batch.
    """

    form: BatchForm

    def __call__(self, fields: Batch) -> Taken:
        """Make it.

        Raises:
            Unstackable: several clients train at once, and the step of each is to be told.
        """
        tag, part = fields.get(CLIENT), fields.get(PART)
        client = None
        if tag is not None:
            if _several(tag):
                raise Unstackable("the training step logs more than its loss")
            client = int(tag[0])
        known = part is not None and not _several(part) and part.numel() > 0
        return Taken(self.form(fields), client, int(cast(Tensor, part)[0]) if known else 0)


def _several(values: Tensor) -> bool:
    functorch: Any = torch._C._functorch
    return bool(functorch.is_batchedtensor(values))


class Adapted(nn.Module):
    """A `LightningModule` whose training step is the loss.

    It has the module's own parameters, buffers and parts, under their names.

    Args:
        module: is worked with; nobody else should.
        logs: where training steps log to; None = nowhere.
    """

    itself: lightning.LightningModule

    def __init__(self, module: lightning.LightningModule, logs: StepLogs | None = None) -> None:
        super().__init__()
        inner = as_client(module)
        self._parameters, self._buffers = inner._parameters, inner._buffers
        self._modules = inner._modules
        self.__dict__["itself"] = inner  # no part: its parts are ours
        inner.__dict__[_METERED] = bool(metrics_in(inner))
        self._listen = None if logs is None else logs.listener()
        self.training = inner.training
        own = {"__module__": __name__}
        self.__class__ = type(type(module).__name__, (type(self),), own)  # as errors call it

    def train(self, mode: bool = True) -> Adapted:
        """Set the mode, of the module within too."""
        super().train(mode)
        self.itself.training = mode
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Adapted:
        super()._apply(fn, recurse)
        first = next(iter(self.parameters()), None)
        if first is not None:
            self.itself.__dict__["_device"] = first.device  # what Lightning gives as self.device
        return self

    def loss(self, taken: Taken) -> Tensor:
        """The loss of a training step, ``()``."""
        if self._listen is None:
            return self.training_loss(taken)
        with listening() as heard:
            value = self.training_loss(taken)
        self._listen(taken.client, heard, self.called)
        return value

    def training_loss(self, taken: Taken) -> Tensor:
        """Call the training step.

        Raises:
            UserError: it gives no loss.
        """
        self.itself.training = self.training
        return loss_of(called(self.itself, "training_step", taken.batch), self.called)

    @property
    def called(self) -> str:
        """Name of the user's class."""
        return type(self.itself).__name__


class AdaptedMeasured(Adapted):
    """One that is measured by its validation and test steps.

    Args:
        module: as of `Adapted`.
        logs: as of `Adapted`.
        names: what each part's step logs, by number of the part, see `PART`.
        monitor: what rounds are chosen by.
        objects: metric objects that are logged, by ``PART/NAME``.
    """

    def __init__(
        self,
        module: lightning.LightningModule,
        logs: StepLogs | None,
        names: Mapping[int, tuple[str, ...]],
        monitor: Monitor,
        objects: Mapping[str, Any],
    ) -> None:
        super().__init__(module, logs)
        self._names, self.monitor = dict(names), monitor
        self._objects: Mapping[str, Any]  # no parts: they are the forms of what is measured
        self.__dict__["_objects"] = dict(objects)
        every = dict.fromkeys(["loss", *(name for part in names.values() for name in part)])
        self.measure_names = tuple(every)

    def predictions(self, taken: Taken) -> Batch:
        """What the step of a part logs of a batch, for each sample of it, ``(B,)`` float64.

        Raises:
            UserError: it logs other names than it did before.
        """
        size = rows_of(taken.batch)
        modes = [(part, part.training) for part in (self, *self.modules()) if part.training]
        self.eval()
        try:
            found = self._measured(taken)
        finally:
            for part, mode in modes:
                part.training = mode
            self.itself.training = self.training
        missing = torch.full((), torch.nan, dtype=torch.float64)
        values = {name: found.pop(name, missing).expand(size) for name in self.measure_names}
        return values | found

    def _measured(self, taken: Taken) -> Batch:
        """Numbers of the batch by name, and states of metric objects by ``PART/NAME/STATE``."""
        found = {"loss": self._value(taken).detach().double()}
        expected = self._names.get(taken.part, ())
        if expected:
            step = step_of(self.itself, taken.part)
            logged = heard_in(self.itself, step, taken.batch)
            heard = {measured_as(name): value for name, value in logged.items()}
            if set(heard) != set(expected):
                raise UserError(
                    f"{step} of {self.called} logs {', '.join(heard) or 'nothing'} for one batch "
                    f"and {', '.join(expected)} for another: log the same for all"
                )
            for name, value in heard.items():
                found[name] = number(name, value)
                if isinstance(value, Seen):
                    rows = value.rows(rows_of(taken.batch))
                    found |= {f"{taken.part}/{name}/{state}": one for state, one in rows.items()}
        return found

    def _value(self, taken: Taken) -> Tensor:
        """The loss outside of training; with gradients where it takes some itself, as penalties."""
        try:
            return self.training_loss(taken)
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
        with torch.enable_grad():
            return self.training_loss(taken)

    def measures(self, predictions: Batch) -> dict[str, Tensor]:
        """Mean over batches, weighted by their samples, or a metric object's value; each ``()``."""
        found = {name: predictions[name].mean() for name in self.measure_names}
        for path, metric in self._objects.items():
            before = f"{path}/"
            held = [name for name in predictions if name.startswith(before)]
            rows = {name.removeprefix(before): predictions[name] for name in held}
            if rows:
                name = path.partition("/")[2]
                found[name] = number(name, put_together(metric, rows))
        return found


def measured_as(name: str) -> str:
    """Name of a measure, in which slashes part something else.

    Example:
        >>> measured_as("val/acc")
        'val_acc'
    """
    return name.replace("/", "_")


def step_of(module: lightning.LightningModule, part: int) -> str:
    """The step that measures a part; test samples of a module without a test step by the other."""
    own = STEPS[part]
    return own if has_step(module, own) else STEPS[1]


def has_step(module: nn.Module, name: str) -> bool:
    """Whether a module's class writes a step."""
    return getattr(type(module), name, None) is not getattr(lightning.LightningModule, name)


def heard_in(module: lightning.LightningModule, step: str, batch: Any) -> Heard:
    """What a step logs of a batch."""
    with listening() as heard, torch.no_grad():
        called(module, step, batch)
    return heard


def called(module: lightning.LightningModule, step: str, batch: Any) -> Any:
    """Call a step as a Trainer would, but that a batch has no number, and metrics are as new."""
    method = getattr(module, step)
    given = (batch, NO_NUMBER)[: _taken(step, method)]
    metrics = metrics_in(module) if module.__dict__.get(_METERED, True) else ()
    try:
        with as_new(metrics):
            result = method(*given)
            settle_metrics()
    except AttributeError as error:
        if (said := of_no_logger(error)) is not None:
            raise said from error
        raise
    return result


def _taken(step: str, method: Callable[..., Any]) -> int:
    """How many arguments a step takes: the batch, and perhaps its number.

    Raises:
        UserError: it needs another.
    """
    takes = inspect.signature(method).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [p for p in takes if p.kind in kinds]
    more = [p for p in takes if p.kind is inspect.Parameter.KEYWORD_ONLY] + given[2:]
    if needed := [p for p in more if p.default is inspect.Parameter.empty]:
        raise UserError(
            f"{step} takes '{needed[0].name}', which no client has: let it take batch and batch_idx"
        )
    rest = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in takes)
    return 2 if rest or len(given) > 1 else 1


def loss_of(given: Any, name: str) -> Tensor:
    """The loss that a training step gives.

    Raises:
        UserError: it gives none.
    """
    if isinstance(given, Mapping):
        if "loss" not in given:
            keys = ", ".join(map(str, given)) or "nothing"
            raise UserError(f"training_step of {name} gives a dict of {keys}: add its 'loss'")
        given = given["loss"]
    if given is None:
        raise UserError(f"training_step of {name} gives None, and a step has a loss: return it")
    if not isinstance(given, Tensor) or given.dim() or not given.is_floating_point():
        raise UserError(
            f"training_step of {name} gives {what_it_is(given)}: return the loss, one "
            "number, such as the mean over the batch"
        )
    return given


def rows_of(batch: Any) -> int:
    """Samples of a batch."""
    while not isinstance(batch, Tensor):
        batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    return len(batch)


class _NoNumber:
    """In place of the number of a batch: clients train side by side, and a batch has none."""

    def _refuse(self, *_: Any) -> Any:
        raise UserError(
            "a step uses batch_idx, and batches of clients that train side by side have no number: "
            "leave it out"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __mod__ = __rmod__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __neg__ = _refuse
    __bool__ = __int__ = __index__ = __float__ = __hash__ = __str__ = __format__ = _refuse


NO_NUMBER = _NoNumber()
