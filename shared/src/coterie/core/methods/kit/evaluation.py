"""How good a model is on samples, what is measured of it, and whether training came to numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData, Samples
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.local_training.agreement import Remembered, measured_alike, pieces
from coterie.core.local_training.alone import STATISTICS, trained_alone
from coterie.core.local_training.batch_values import of_clients
from coterie.core.local_training.fit import Fitted
from coterie.core.local_training.losses import AsBatch, Batch, Loss, MethodOf, masked, scalar
from coterie.core.local_training.probing import Habits
from coterie.core.local_training.row_optimizer import Params
from coterie.core.metrics.monitor import Monitor
from coterie.core.protocol.uploads import PLAUSIBLE


@dataclass(frozen=True)
class Quality:
    """Measurements of C models; NaN where there is no sample, or a measure is not defined.

    Attributes:
        values: by name, each ``(C,)`` float64; ``loss`` and ``accuracy``, or the module's own.
    """

    values: dict[str, Tensor]

    @property
    def loss(self) -> Tensor:
        """``(C,)`` mean loss.

        Raises:
            UserError: the module's own measures have none.
        """
        if "loss" not in self.values:
            known = ", ".join(self.values)
            raise UserError(
                f"this method needs the loss, and the model measures only {known}: add 'loss' to "
                "its measures"
            )
        return self.values["loss"]

    @property
    def accuracy(self) -> Tensor:
        """``(C,)`` share of samples that the model gets right; NaN where it cannot be told."""
        found = self.values.get("accuracy")
        return torch.full_like(self.loss, torch.nan) if found is None else found


@runtime_checkable
class MeasuresItself(Protocol):
    """A module with measures of its own, which need all samples of a client at once, as an AUC.

    Attributes:
        monitor: what a round is chosen by; its key is ``eval/`` and the name of a measure.
        measure_names: of the measures.
    """

    monitor: Monitor
    measure_names: tuple[str, ...]

    def predictions(self, batch: Batch) -> Batch:
        """What is kept of the samples of a batch, each ``(B, ...)``."""
        ...

    def measures(self, predictions: Batch) -> dict[str, Tensor]:
        """Measure all samples of a client by what was kept; each ``()``, NaN = undefined."""
        ...


ACCURACY = Monitor("eval/accuracy")
"""What a round is chosen by where the module does not say."""


def monitor_of(module: nn.Module) -> Monitor:
    """What a round is chosen by."""
    return module.monitor if isinstance(module, MeasuresItself) else ACCURACY


def shown_names(module: nn.Module) -> tuple[str, ...]:
    """Measures of which a mean over the models that count is noted beside that of each model."""
    if isinstance(module, MeasuresItself):
        return module.measure_names
    return (ACCURACY.key.removeprefix("eval/"),)


# How good a model is on samples: mean loss and accuracy, or what the module itself measures.

_BATCH = 1000  # samples of a model at a time
_NUMBERS = 1 << 22  # in the samples of models measured together; layers make many times as many


class Evaluator:
    """Measure models of one form.

    Args:
        module: has ``loss(batch)`` and for the accuracy ``correct(batch)``, ``(B,)`` bool, both of
            all samples of a client, in parts where they are means over samples; or says itself how
            it is measured (`coterie.core.methods.kit.evaluation.MeasuresItself`). It is measured in
            evaluation mode.
        as_batch: see `coterie.core.local_training.losses.MethodOf`.
    """

    derived = ("_means", "_whole", "_held", "_no_means", "_looking")

    def __init__(self, module: nn.Module, as_batch: AsBatch | None = None) -> None:
        self._module, self._as_batch = module, as_batch
        self._apart = trained_alone(module)
        self._itself = module if isinstance(module, MeasuresItself) else None
        self._habits = Habits(module, as_batch, False, draws=self._apart)
        self._no_means = Remembered(self._mixed)
        self._one_by_one = self._apart or self._itself is not None
        self._looking = threading.Lock()
        self._held: dict[int, tuple[Batch, SampleData]] = {}
        self._made()

    def _made(self) -> None:
        """Make the measures, of the module as it is now."""
        mode, name = False if self._apart else None, type(self._module).__name__

        def made(method: str) -> Any:
            return MethodOf(self._module, method, mode, self._as_batch)

        self._means: dict[str, Loss] = {}
        self._whole: Callable[[Params, Batch], Batch] | None = None
        if self._itself is not None:
            self._whole = made("predictions")
            return
        self._means["loss"] = _valued(scalar(made("loss"), name))
        if hasattr(self._module, "correct"):
            self._means["accuracy"] = share_of(made("correct"), name)

    def _look(self, data: Samples | None) -> None:
        """Read anew what the module reads beside its tensors; the first time see what it does."""
        with self._looking:  # whoever comes meanwhile measures by what is made of it
            self._look_now(data)

    def _look_now(self, data: Samples | None) -> None:
        anew = data is not None and self._itself is None and self._habits.look(data, _BATCH)
        if data is None or self._itself is not None or self._habits.changing is not None:
            anew = self._habits.read_again() or anew
        if anew:
            self._made()
            self._no_means.clear()

    def _mixed(self, data: SampleData) -> str | None:
        """Say so where a measure of samples is not the mean over single ones."""
        named = self._module.named_parameters()
        form = {name: value.detach() for name, value in named if value.requires_grad}
        alike = all(
            measured_alike(measure, form, pieces(data.samples, _BATCH, form))
            for measure in self._means.values()
        )
        return None if alike else "a measure of samples is not the mean over single ones"

    def of_clients(self, params: Params, data: Samples) -> Quality:
        """Measure on each client's samples one model a client, or the same for all.

        Args:
            params: each ``(C, ...)``, or ``(1, ...)`` where all clients have the same; running
                statistics of the module among them.
            data: of C clients.
        """
        self._look(data)
        if self._one_by_one or not isinstance(data, SampleData) or self._whole_only(data):
            places = torch.arange(len(data)).split(1) if len(data) else ()  # none is one empty part
            parts = [data] if len(data) == 1 else map(data.take, places)
            return self._stacked(
                [self._alone(_of_client(params, row), part) for row, part in enumerate(parts)]
            )
        batches = data.batches(1, _BATCH, None)
        found = {name: torch.zeros(len(data), dtype=torch.float64) for name in self._means}
        measures = {name: masked(measure) for name, measure in self._means.items()}
        for number, rows in _side_by_side(data, batches.per_epoch):
            sizes = (data.lengths[rows] - number * _BATCH).clamp(max=_BATCH)
            for name, measure in measures.items():
                values = of_clients(measure, params, batches, rows, number).double()
                found[name].index_add_(0, rows, sizes * values)
        return Quality({name: total / data.lengths for name, total in found.items()})

    def _whole_only(self, data: Samples) -> bool:
        """Whether the measures must see all samples of a client at once, without padding."""
        if self._itself is not None or not isinstance(data, SampleData) or not len(data):
            return False
        if self._habits.changing is not None:
            return True
        whole = data.whole
        if int(whole.lengths.max()) <= _BATCH and (self._apart or whole.alike or len(whole) == 1):
            return False  # they do
        return self._no_means(data) is not None

    def held_out(self, params: Params, data: SplitSamples) -> Quality:
        """Measure on validation samples, or on the training samples of a client without any.

        NaN for those without samples of either kind; ``params`` as for `of_clients`.
        """
        valid = self.of_clients(params, data.valid)
        some = data.valid.lengths > 0
        if bool(some.all()):
            return valid
        train = self.of_clients(params, data.train).values
        return Quality({n: torch.where(some, v, train[n]) for n, v in valid.values.items()})

    def of_models(self, params: Params, samples: Batch) -> Quality:
        """Measure C models on the same samples, as many at a time as there is memory for.

        Args:
            params: each ``(C, ...)``.
            samples: fields by name, each ``(n, ...)``; none gives NaN.
        """
        count = len(next(iter(samples.values()), ()))
        n_models = len(next(iter(params.values())))
        data = self._as_one(samples) if count else None
        self._look(data)
        if data is not None and (self._one_by_one or self._whole_only(data)):
            models = (_of_client(params, row) for row in range(n_models))
            return self._stacked([self._alone(model, data) for model in models])
        found = {
            name: torch.full((n_models,), torch.nan, dtype=torch.float64) for name in self._names
        }
        for name, mean in self._means.items() if count else ():
            measure, total = masked(mean), torch.zeros(n_models, dtype=torch.float64)
            for start in range(0, count, _BATCH):
                part = {field: values[start : start + _BATCH] for field, values in samples.items()}
                size = len(next(iter(part.values())))
                total += size * self._on_one(measure, params, part, n_models).double()
            found[name] = total / count
        return Quality(found)

    def _as_one(self, samples: Batch) -> SampleData:
        """Samples as those of one client; one object for the same samples, to be remembered."""
        kept = self._held.get(id(samples))
        if kept is None or kept[0] is not samples:
            self._held = dict(list(self._held.items())[-3:])
            kept = self._held[id(samples)] = (samples, SampleData.from_clients([samples]))
        return kept[1]

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self._means) if self._itself is None else self._itself.measure_names

    @torch.no_grad()
    def _alone(self, params: Params, data: Samples) -> dict[str, Tensor]:
        """Measure one model on the samples of one client, batch by batch; each ``()``."""
        count = int(data.lengths[0])
        if self._habits.changing is not None:  # for every client from where the module stands
            self._made()
        if not count:
            return dict.fromkeys(self._names, torch.tensor(torch.nan, dtype=torch.float64))
        size = None if self._whole_only(data) else _BATCH
        sums, kept = dict.fromkeys(self._means, torch.zeros((), dtype=torch.float64)), []
        for batch in _in_turn(data, size):
            size = len(next(iter(batch.values())))
            for name, measure in self._means.items():
                sums[name] = sums[name] + size * measure(params, batch).double()
            if self._whole is not None:
                kept.append(self._whole(params, batch))
        found = {name: total / count for name, total in sums.items()}
        if kept and self._itself is not None:
            found |= {n: v.double() for n, v in self._itself.measures(_joined(kept)).items()}
        return found

    @torch.no_grad()
    def predictions(self, params: Params, data: Samples) -> list[Batch]:
        """What a module that measures itself keeps of each client's samples, see `MeasuresItself`.

        Args:
            params: as for `of_clients`.
            data: of C clients, each with samples.
        """
        whole = self._whole
        assert whole is not None
        rows = torch.arange(len(data)).split(1)
        each = ((_of_client(params, int(row)), data.take(row)) for row in rows)
        return [_joined([whole(m, batch) for batch in _in_turn(d, _BATCH)]) for m, d in each]

    def _stacked(self, found: list[dict[str, Tensor]]) -> Quality:
        none = torch.zeros(0, dtype=torch.float64)
        return Quality(
            {n: torch.stack([one[n] for one in found]) if found else none for n in self._names}
        )

    def _on_one(self, measure: Any, params: Params, part: Batch, n_models: int) -> Tensor:
        def shared(number: int, rows: Tensor) -> Batch:
            return {name: values.expand(len(rows), *values.shape) for name, values in part.items()}

        together = max(1, _NUMBERS // sum(values.numel() for values in part.values()))
        rows = torch.arange(n_models).split(together)
        return torch.cat([of_clients(measure, params, shared, some) for some in rows])


def _in_turn(data: Samples, size: int | None) -> Iterator[Batch]:
    """Give the samples of a single client, so many at a time."""
    batches, first = data.batches(1, size, None), torch.tensor([0])
    for number in range(int(batches.steps[0])):
        yield {name: values[0] for name, values in batches(number, first).items()}


def _joined(parts: list[Batch]) -> Batch:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _valued(loss: Loss) -> Loss:
    """Make a loss give its value outside of training too, where it takes gradients itself.

    Such are penalties of gradients, and steps that a loss makes within (`torch.autograd.grad`).
    """

    def value(params: Params, batch: Batch) -> Tensor:
        try:
            return loss(params, batch).detach()
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
        with torch.enable_grad():
            constant = [name for name in params if name.rpartition(".")[2] in STATISTICS]
            free = {
                n: v if n in constant else v.detach().requires_grad_() for n, v in params.items()
            }
            return loss(free, batch).detach()

    return value


def share_of(correct: Callable[[Params, Batch], Any], name: str) -> Loss:
    """Make of a method that says which samples are right the share of those.

    Args:
        correct: of one client, ``(B,)``.
        name: of the module, for errors.
    """

    def share(params: Params, batch: Batch) -> Tensor:
        found, count = correct(params, batch), len(next(iter(batch.values())))
        if not isinstance(found, Tensor) or found.shape != (count,):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise UserError(
                f"{name}.correct(batch) gives {shape} for {count} samples: return one truth value "
                "for each, a tensor of shape (B,)"
            )
        return found.double().mean()

    return share


def _of_client(params: Params, row: int) -> Params:
    """Parameters of one client; those with one row are the same for all."""
    return {name: value[row if len(value) > 1 else 0] for name, value in params.items()}


def _side_by_side(data: SampleData, n_batches: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Number of a batch, and which clients there is memory for to measure on theirs at a time.

    They are sorted by their samples, so that little is padded.
    """
    order = data.lengths.argsort(descending=True, stable=True)
    numbers = sum(values[:1].numel() for values in data.samples.values())  # in a sample
    for number in range(int(n_batches.max()) if len(data) else 0):
        rows = order[: int((n_batches > number).sum())]
        while rows.numel():
            longest = min(int(data.lengths[rows[0]]) - number * _BATCH, _BATCH)
            together = max(1, _NUMBERS // max(longest * numbers, 1))
            yield number, rows[:together]
            rows = rows[together:]


# Training that did not come to numbers, for clients whose agents must learn of it.


def has_diverged(fitted: Fitted, quality: Quality) -> Tensor:
    """Whose training did not come to plausible numbers, ``(C,)`` bool.

    A finite model whose loss is NaN does not count as such and is refused: nearly always it was
    measured on samples that are no numbers.
    """
    found = ~fitted.loss.isfinite() | quality.loss.isinf()
    for value in fitted.params.values():
        found |= ~(value.flatten(1).norm(dim=1) <= PLAUSIBLE.norm)  # NaN compares as false
    return found


def restored(diverged: Tensor, fitted: Fitted, start: Params) -> Fitted:
    """Put what training began with in the place of the models that ``diverged``, ``(C,)`` bool."""
    if not bool(diverged.any()):
        return fitted
    rows = diverged.nonzero().flatten()
    params = {
        name: value.index_copy(0, rows, start[name].index_select(0, rows))
        for name, value in fitted.params.items()
    }
    return replace(fitted, params=params, loss=fitted.loss.masked_fill(diverged, 0.0))
