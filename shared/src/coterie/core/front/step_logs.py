"""What a module's steps give to `self.log`: who listens, and what becomes of it in training.

In a step nobody but its caller may listen, for a step may run beside others in another thread, may
be tried, and may be one of several clients at once. So the caller opens `listening` around it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.samples.samples import CountedBatches, SampleData, Samples
from coterie.core.errors import UserError
from coterie.core.front.metric_objects import Seen, is_metric
from coterie.core.local_training.losses import Batch
from coterie.core.methods.kit.side_by_side import Stackable
from coterie.core.methods.kit.training import LocalTraining
from coterie.core.protocol.journal import Journal
from coterie.core.tensors.keys import Key

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
