"""What a paper gives so that its network is trained without a federation, by any Lightning Trainer.

A batch is a function of its number: it is the same whoever asks for it, in which process, and
after which others. So an ordinary ``DataLoader`` with any number of workers gives the batches that
the paper's own training has, negatives and masks of dropout among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from coterie.core.metrics.monitor import Monitor
from coterie.core.metrics.ranking_report import Split

B = TypeVar("B")
Q = TypeVar("Q")
O = TypeVar("O")  # noqa: E741

PREFIX = {"valid": "eval", "test": "test"}
"""Part of the data -> how the names of its measures begin."""


class Standalone(ABC, Generic[B, Q, O]):
    """A network with its objective and data: B is a training batch, Q a question, O its outcome.

    Tensors of batches and questions are trees (`coterie.core.tensors.tree`), so that they can be
    moved to where the network is.

    Attributes:
        network: what is trained: those of its parameters that want a gradient.
        per_epoch: number of batches in an epoch, at least 1.
        monitor: what an epoch is chosen by.
        clip: largest norm of a gradient, where the Trainer does not say; None = any.
    """

    network: nn.Module
    per_epoch: int
    monitor: Monitor
    clip: float | None = None

    @abstractmethod
    def batch(self, number: int) -> B:
        """Make batch ``number`` from 0, counted over all epochs; every epoch draws anew."""

    @abstractmethod
    def loss(self, batch: B) -> Tensor:
        """Mean loss of a batch by the network as it is, ``()``, with a gradient."""

    @abstractmethod
    def optimizer(self) -> Optimizer:
        """Make the optimizer of the paper's settings."""

    @abstractmethod
    def questions(self, split: Split) -> Sequence[Q]:
        """Give what is asked of the network in validation or test, some samples or users at a time.

        Nothing is asked where nobody has such data.
        """

    @abstractmethod
    def outcome(self, question: Q) -> O:
        """Answer a question by the network as it is, and keep what the measures need of it."""

    @abstractmethod
    def measures(self, split: Split, outcomes: Sequence[O]) -> dict[str, float]:
        """Measure by the outcomes, at least one, under the paper's keys; NaN is not logged."""

    def ready(self, split: Split) -> None:
        """Make the network ready to answer after it has changed. Default: it is."""

    def trained(self) -> Iterator[Parameter]:
        """The parameters that are trained."""
        return (value for value in self.network.parameters() if value.requires_grad)
