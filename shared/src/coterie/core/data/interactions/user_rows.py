"""Items of users who are clients: all that each of them may read."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.tensors.ragged import Ragged


@dataclass(frozen=True)
class UserRows:
    """Items of C users, split; in a stream, of the current block only.

    Attributes:
        ids: ``(C,)`` int64, ascending user numbers.
        train: item numbers of each user.
        valid: the same for validation.
        test: the same for the test.
        earlier: items of earlier blocks, for a measurement that leaves them out; no step of
            training may read them. None where there are no blocks, or where it is not measured.
    """

    ids: Tensor
    train: Ragged
    valid: Ragged
    test: Ragged
    earlier: Ragged | None = None

    def take(self, index: Tensor) -> UserRows:
        """Data of the users at the positions ``index``, ``(K,)`` int64."""
        return UserRows(
            self.ids[index],
            self.train.take(index),
            self.valid.take(index),
            self.test.take(index),
            None if self.earlier is None else self.earlier.take(index),
        )
