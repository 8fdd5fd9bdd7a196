"""The clients of the plain loop, trained by pfl-research where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from benchmarks.continual.loop import Batch, ClientLoop, DrawSubset
from benchmarks.core.pfl_rounds import PflRounds


class PflLoop(ClientLoop):
    """Rounds of FedMF without replay in pfl, over a dense item table; it measures no loss.

    A client's vector is private: put in place before it trains, taken away after it, and no part
    of what pfl adds up. Arguments as of the loop.

    Raises:
        ModuleNotFoundError: there is no pfl.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rounds = PflRounds(
            _Scored(self.model.items, self.model.user),
            self._optimizer,
            self.item_lr,
            len(self.positives),
            self.settings.model.batch_size,
            private=self._vector,
        )

    def round(
        self,
        table: Tensor,
        batches: Callable[[int], Iterable[Batch]] | None = None,
        subset: DrawSubset | None = None,
    ) -> Tensor:
        """Train every client and return the mean of their tables; arguments as of the loop's."""
        drawn = batches or self._draw

        def samples(client: int) -> list[Tensor]:
            return [torch.cat(parts) for parts in zip(*drawn(client), strict=True)]

        (items,) = self._rounds.round([table], samples)
        return items

    def _optimizer(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        user: dict[str, Any] = {"params": [self.model.user], "lr": self.user_lr}
        return torch.optim.SGD([user, {"params": list(parameters)}], lr=lr)

    @contextmanager
    def _vector(self, client: int) -> Iterator[None]:
        with torch.no_grad():
            self.model.user.copy_(self.users[client])
        yield
        with torch.no_grad():
            self.users[client] = self.model.user


class _Scored(nn.Module):
    """What pfl is given: the table alone is a parameter of it."""

    def __init__(self, items: nn.Parameter, user: nn.Parameter) -> None:
        super().__init__()
        self.items = items
        self._private = (user,)  # in a tuple, where torch does not look for parameters

    def loss(self, item: Tensor, label: Tensor) -> Tensor:
        return bce(self.items[item] @ self._private[0], label)

    def metrics(self, item: Tensor, label: Tensor) -> dict[str, Any]:
        return {}
