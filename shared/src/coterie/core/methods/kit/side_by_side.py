"""Which clients may be trained side by side: found out once for the samples of a block."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from torch import Tensor

from coterie.core.data.samples.samples import CountedBatches, SampleData
from coterie.core.errors import Unstackable
from coterie.core.local_training.losses import Batch

Check = Callable[[SampleData], str | None]


class Remembered:
    """What a check finds of samples, of all that they were taken from: once.

    So it depends on no chunk, on no order, and on nobody who has answered before.

    Args:
        check: of samples; what speaks against them, or None.

    Example:
        >>> import torch
        >>> data = SampleData.from_clients([{"x": torch.ones(2)}, {"x": torch.ones(1)}])
        >>> why = Remembered(lambda data: f"{len(data)} clients")
        >>> why(data.take(torch.tensor([1])))
        '2 clients'
    """

    def __init__(self, check: Check) -> None:
        self._check, self._lock = check, threading.Lock()
        self._found: dict[int, tuple[weakref.ref[SampleData], str | None]] = {}

    def __call__(self, data: SampleData) -> str | None:
        """What speaks against samples."""
        whole = data.whole
        with self._lock:  # threads that come meanwhile wait for it
            found = self._found.get(id(whole))
            if found is None or found[0]() is not whole:
                self._found = {n: one for n, one in self._found.items() if one[0]() is not None}
                found = self._found[id(whole)] = (weakref.ref(whole), self._check(whole))
        return found[1]

    def clear(self) -> None:
        """Forget all: the module has changed."""
        with self._lock:
            self._found.clear()


class Stackable:
    """Batches that several clients get together only where nothing speaks against it.

    Args:
        batches: of clients.
        why_not: says what does; asked when several are wanted.

    Attributes:
        per_epoch: as those of ``batches``.
        steps: as those of ``batches``.
    """

    def __init__(self, batches: CountedBatches, why_not: Callable[[], str | None]) -> None:
        self._batches, self.why_not = batches, why_not
        self.per_epoch, self.steps = batches.per_epoch, batches.steps

    def __call__(self, number: int, rows: Tensor) -> Batch:
        """Batch ``number`` of the clients ``rows``.

        Raises:
            Unstackable: there are several, and something speaks against it.
        """
        if rows.numel() > 1 and (why := self.why_not()) is not None:
            raise Unstackable(why)
        return self._batches(number, rows)
