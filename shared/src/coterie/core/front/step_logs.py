"""Metric objects of torchmetrics in the steps of a module: of one step at a time, put together.

A metric object remembers what it saw, and a module's is copied, shared by clients, and called on
samples to train and to measure alike. So each step has its metrics as new, and what they hold
afterwards goes with what the step logs: sums and lists of several batches of a client make the
metric of all its samples, as `self.log` of an object has it.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import CountedBatches, SampleData, Samples
from coterie.core.errors import UserError
from coterie.core.local_training.agreement import Stackable
from coterie.core.local_training.losses import Batch
from coterie.core.methods.kit.training import LocalTraining
from coterie.core.protocol.journal import Journal
from coterie.core.tensors.keys import Key
from coterie.core.tensors.tree import columns

_LEAST, _MOST = "dim_zero_min", "dim_zero_max"
_SUM, _CAT = "dim_zero_sum", "dim_zero_cat"


def is_metric(value: object) -> bool:
    """Whether something is a metric object, or a collection of them."""
    metrics = sys.modules.get("torchmetrics")  # who has one has imported it
    return metrics is not None and isinstance(value, metrics.Metric | metrics.MetricCollection)


def metrics_in(module: nn.Module) -> list[nn.Module]:
    """All metric objects of a module: parts of it, and those in its lists and dicts."""
    if "torchmetrics" not in sys.modules:
        return []
    found: dict[int, nn.Module] = {}
    for part in module.modules():
        beside = [value for value in vars(part).values() if isinstance(value, list | tuple | dict)]
        inside = [one.values() if isinstance(one, dict) else one for one in beside]
        for one in (part, *(value for values in inside for value in values if is_metric(value))):
            if is_metric(one):
                found |= {id(inner): inner for inner in one.modules() if is_metric(inner)}
    return list(found.values())


@contextmanager
def as_new(metrics: Iterable[nn.Module]) -> Iterator[None]:
    """Have metric objects as new inside, and afterwards as they were, to the same tensors."""
    before = [(metric, dict(vars(metric))) for metric in metrics]
    try:
        for metric, _ in before:
            for name, default in getattr(metric, "_defaults", {}).items():
                # A list of its own, for reset() empties the one that is there.
                vars(metric)[name] = default.detach().clone() if isinstance(default, Tensor) else []
        for metric, _ in before:
            metric.reset()  # type: ignore[operator]
        yield
    finally:
        for metric, attributes in before:
            vars(metric).clear()
            vars(metric).update(attributes)


@dataclass(frozen=True)
class Seen:
    """What a metric object saw in one step.

    Attributes:
        name: under which it is logged.
        value: of it, whatever it is.
        metric: the object; as new, outside of the step.
        states: what it held, by name.
    """

    name: str
    value: Any
    metric: Any
    states: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, metric: Any) -> Seen:
        """Look at a metric object in a step, after it was updated.

        Raises:
            UserError: it was not, or is a collection.
        """
        if not hasattr(metric, "_defaults"):
            raise UserError(
                f"self.log('{name}', ...) got a {type(metric).__name__}: log its metrics by "
                "self.log_dict"
            )
        if not metric.update_called:
            raise UserError(
                f"self.log('{name}', ...) got a {type(metric).__name__} that the step did not "
                "update: call it, or its update, with the batch"
            )
        states = {state: getattr(metric, state) for state in metric._defaults}
        return cls(name, metric.compute(), metric, states)

    def rows(self, size: int) -> dict[str, Tensor]:
        """The states as fields of a batch, ``(B, ...)``, which `put_together` takes.

        Args:
            size: B.

        Raises:
            UserError: they cannot be put together from batches.
        """
        found: dict[str, Tensor] = {}
        for state, value in self.states.items():
            how = _reduction(self.metric, state)
            if how == _CAT and isinstance(value, list) and value:
                joined = torch.cat([one.detach().reshape(-1, *one.shape[1:]) for one in value])
                if len(joined) != size:
                    raise self._apart(f"{len(joined)} rows of {size} samples in '{state}'")
                found[state] = joined
            elif how in (_SUM, _LEAST, _MOST) and isinstance(value, Tensor):
                whole = value.detach().expand(size, *value.shape)
                if how == _SUM:
                    first = torch.arange(size, device=value.device) == 0
                    whole = whole * columns(first, whole).to(value.dtype)
                found[state] = whole
            else:
                raise self._apart(f"'{state}'")
        if not found:
            raise self._apart("nothing of its own")
        return found

    def _apart(self, what: str) -> UserError:
        return UserError(
            f"self.log('{self.name}', ...) got a {type(self.metric).__name__}, which holds {what} "
            "and cannot be put together from batches: log its value of the batch, metric(...)"
        )


def put_together(metric: Any, rows: Mapping[str, Tensor]) -> Any:
    """The value of a metric object of all samples of which there are `Seen.rows`.

    Args:
        metric: is copied.
        rows: of one batch or of several, one after the other.
    """
    whole = copy.deepcopy(metric).to(next(iter(rows.values())).device)
    whole.reset()
    for state, values in rows.items():
        how = _reduction(whole, state)
        if how == _CAT:
            found: Any = [values]
        elif how == _SUM:
            found = values.sum(0, dtype=values.dtype)
        else:
            found = values.amax(0) if how == _MOST else values.amin(0)
        setattr(whole, state, found)
    whole._update_count = 1
    return whole.compute()


def _reduction(metric: Any, state: str) -> str:
    return getattr(metric._reductions[state], "__name__", "")


# What a module's steps give to `self.log`: who listens, and what becomes of it in training.
#
# In a step nobody but its caller may listen, for a step may run beside others in another thread,
# may be tried, and may be one of several clients at once. So the caller opens `listening` around
# it.

CLIENT = "front.client"
"""Field of a batch that is trained on: whose it is, ``(K, B)`` int64."""
Heard = dict[str, Any]
Listener = Callable[[int | None, Heard, str], None]

_SINK: ContextVar[Heard | None] = ContextVar("what a step logs", default=None)


@contextmanager
def listening() -> Iterator[Heard]:
    """Collect what is logged inside, by name."""
    heard: Heard = {}
    token = _SINK.set(heard)
    try:
        yield heard
    finally:
        _SINK.reset(token)


def hear(name: str, value: Any) -> None:
    """Take note of what a step logs, where somebody listens."""
    heard = _SINK.get()
    if heard is not None:
        heard[name] = value


def settle_metrics() -> None:
    """Take the values of metric objects that were logged, at the end of a step.

    Raises:
        UserError: the step has not updated one.
    """
    heard = _SINK.get()
    for name, value in (heard or {}).items():
        if is_metric(value):
            heard[name] = Seen.of(name, value)  # type: ignore[index]


def number(name: str, value: Any) -> Tensor:
    """Make a number of what was logged, ``()`` float64.

    Raises:
        UserError: it is none.
    """
    if isinstance(value, Seen):
        value = value.value
    if isinstance(value, int | float):
        return torch.tensor(float(value), dtype=torch.float64)
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().reshape(()).double()
    what = f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        what = f"a tensor of shape {tuple(value.shape)}"
    raise UserError(f"self.log('{name}', ...) got {what}: log one number, such as a mean")


_Heard = tuple[dict[str, dict[int, tuple[float, int]]], dict[int, int]]
"""Name -> client -> sum and number of steps; client -> number of samples."""


class StepLogs:
    """Means over the steps of each client, in the round that is open.

    Args:
        loss_names: names under which a step logs its loss itself; these are the round's training
            loss, and nothing is collected for them.
        collected: whether anything else is logged.

    Attributes:
        by_client: whether steps are a client's, as they are but in central training.
    """

    by_client = True

    def __init__(self, loss_names: tuple[str, ...], collected: bool) -> None:
        self.loss_names, self.collected = loss_names, collected
        self._lock = threading.Lock()
        self._sums: dict[str, dict[int, tuple[float, int]]] = {}
        self._sizes: dict[int, int] = {}

    def listener(self) -> Listener:
        """Give what a module calls with what a step of a client logged; no copy of it is another.

        A function, as what it writes is nothing that a module reads.
        """

        def listen(client: int | None, heard: Heard, name: str) -> None:
            if not self.collected and (more := set(heard) - set(self.loss_names)):
                raise UserError(
                    f"training_step of {name} logs '{min(more)}' in some batches only: log the "
                    "same in all"
                )
            if self.collected and client is not None:
                self._add(client, heard)

        return listen

    def _add(self, client: int, heard: Heard) -> None:
        """Add what one step of a client logged; NaN is left out."""
        with self._lock:
            for name, value in heard.items():
                found = float(number(name, value))
                if found == found:
                    total, count = self._sums.setdefault(name, {}).get(client, (0.0, 0))
                    self._sums[name][client] = (total + found, count + 1)

    def sizes(self, data: Samples) -> None:
        """Note by how many samples clients count."""
        with self._lock:
            self._sizes.update(zip(data.ids.tolist(), data.lengths.tolist(), strict=True))

    def taken(self) -> _Heard:
        """Give what there is of the round, once: for another process."""
        with self._lock:
            found, self._sums, self._sizes = (self._sums, self._sizes), {}, {}
        return found

    def add(self, heard: _Heard) -> None:
        """Add what `taken` gave elsewhere."""
        with self._lock:
            for name, of_clients in heard[0].items():
                mine = self._sums.setdefault(name, {})
                for client, (total, count) in of_clients.items():
                    before = mine.get(client, (0.0, 0))
                    mine[client] = (before[0] + total, before[1] + count)
            self._sizes.update(heard[1])

    def note(self, journal: Journal) -> None:
        """Enter the round's means, as ``train/NAME``, and those of clients; begin a new round."""
        if "fed/loss" in journal.scalars and not self.collected:
            for name in self.loss_names:
                journal.scalar(shown(name), journal.scalars["fed/loss"])
        with self._lock:
            found, self._sums = self._sums, {}
        for name, of_clients in found.items():
            ids = sorted(of_clients)
            means = [of_clients[one][0] / of_clients[one][1] for one in ids]
            weights = [self._sizes.get(one, 1) for one in ids]
            total = sum(w * v for w, v in zip(weights, means, strict=True))
            journal.known(shown(name), total / max(sum(weights), 1))
            if self.by_client:
                values = torch.tensor(means, dtype=torch.float64)
                journal.per_client(shown(name), torch.tensor(ids), values)


def shown(name: str) -> str:
    """Name of a training measurement in the journal.

    Example:
        >>> shown("train/acc"), shown("mae")
        ('train/acc', 'train/mae')
    """
    return "train/" + name.removeprefix("train/").replace("/", "_")


class ObservedTraining(LocalTraining):
    """Local training that tells the module whose step it makes, one client after the other.

    Arguments are those of `LocalTraining`, and ``logs``, where what is logged is collected.
    """

    logs: StepLogs

    @property
    def recording(self) -> bool:
        """No: a step that is run again as a list of operations logs nothing."""
        return False

    def batches(
        self, data: Samples, key: Key, epochs: int | Tensor | None = None
    ) -> CountedBatches:
        """As those of `LocalTraining`, with the number of the client."""
        self.logs.sizes(data)
        tagged = _Tagged(super().batches(data, key, epochs), data.ids)
        if self.alone or not isinstance(data, SampleData):
            return tagged
        return Stackable(tagged, _why_not)


def _why_not() -> str:
    return "the training step logs more than its loss, which is collected client by client"


class _Tagged:
    """Batches that say whose they are."""

    def __init__(self, batches: CountedBatches, ids: Tensor) -> None:
        self._batches, self._ids = batches, ids
        self.per_epoch, self.steps = batches.per_epoch, batches.steps

    def __call__(self, number: int, rows: Tensor) -> Batch:
        batch = self._batches(number, rows)
        size = next(iter(batch.values())).shape[1] if batch else 1
        return batch | {CLIENT: self._ids[rows][:, None].expand(-1, size)}
