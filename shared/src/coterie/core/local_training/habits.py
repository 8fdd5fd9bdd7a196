"""What is known of a module's loss beside its numbers: what it reads, what it changes."""

from __future__ import annotations

import threading

from torch import nn

from coterie.core.data.samples.samples import Samples
from coterie.core.local_training.losses import AsBatch
from coterie.core.local_training.probing import changes_itself, first_batch
from coterie.core.local_training.watching import Reading, Unwatchable, reading
from coterie.core.tensors.keys import Key


class Habits:
    """Look at a module before each round.

    Args:
        module: has ``loss(batch)``.
        as_batch: see `coterie.core.local_training.losses.MethodOf`.
        training: mode in which it is tried; None = as it is.
        draws: whether it may draw from torch's generator.

    Attributes:
        changing: what its loss changes beside its result; None where that is nothing, or not known.
        watchable: whether all that it reads can be compared from round to round.
    """

    def __init__(
        self, module: nn.Module, as_batch: AsBatch | None, training: bool | None, draws: bool
    ) -> None:
        self._module, self._as_batch, self._training = module, as_batch, training
        self._seed = Key.from_seed(0).fold("habits") if draws else None
        self._lock, self._tried = threading.Lock(), False
        self.changing: str | None = None
        self.watchable = True
        self._reading = self._read()

    def look(self, data: Samples, batch_size: int | None) -> bool:
        """Look again; the first time its loss is tried, on a batch of some client.

        Returns:
            Whether what was made of the module must be made anew.

        Raises:
            UserError: it has no loss to train, see `coterie.core.local_training.probing`.
        """
        with self._lock:
            tried = not self._tried and self._try(data, batch_size)
            if self.changing is not None:  # the module itself is at work
                return tried
        return self.read_again()

    def read_again(self) -> bool:
        """Whether what was made of the module must be made anew, as it reads something else."""
        with self._lock:
            before, self._reading = self._reading, self._read()
            return not self.watchable or before != self._reading

    def _read(self) -> Reading | None:
        try:
            found = reading(self._module, self._as_batch)
        except Unwatchable:
            self.watchable = False
            return None
        self.watchable = True
        return found

    def _try(self, data: Samples, batch_size: int | None) -> bool:
        some = (data.lengths > 0).nonzero().flatten()
        if not some.numel():
            return False
        batch = first_batch(data, some[:1], batch_size)
        self.changing = changes_itself(
            self._module, batch, self._as_batch, self._training, self._seed
        )
        self._tried = True
        return self.changing is not None
