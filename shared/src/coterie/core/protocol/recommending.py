"""What a client and a server half add where items are recommended."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from torch import Tensor

from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Down, Private
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged

P = TypeVar("P", bound=Private)
S = TypeVar("S")


class RecommendsItems(Generic[P]):
    """A client half that scores items on its device; beside `Client`."""

    def predict(self, down: Any, mine: P) -> Tensor:
        """Score all items for C clients on their devices, ``(C, n_items)``.

        Args:
            down: what `ServesItems.serve` gave for them.
            mine: their private state.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how it scores items")

    def adapt(self, down: Any, history: Ragged, key: Key) -> P:
        """Fit the private state of C newcomers to their items with the public part fixed."""
        raise NotImplementedError(f"{type(self).__name__} does not adapt to newcomers")


class ServesItems(Generic[S]):
    """A server half whose clients are recommended items; beside `Server`."""

    def serve(self, state: S, user: int | None, cohort: Cohort) -> Down:
        """Give what a client downloads to recommend on its own.

        Where a prediction needs other clients, they are asked here, through the cohort: what they
        answer is checked and counted as in a round, and reaches the client in the message.

        Args:
            state: of a trained run.
            user: number of the user in the data; None for someone new.
            cohort: all clients of the newest block.

        Example:
            def serve(self, state, user, cohort):
                fitted = cohort.ask(FITTED, Query(user))  # the peers' part of the prediction
                return Answer(state.weights, fitted.up)
        """
        raise NotImplementedError(f"{type(self).__name__} must say what it serves")
