"""What a round measured, handed to the loggers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Journal:
    """Numbers of the current round; the driver empties it after logging.

    Attributes:
        scalars: name -> value, such as ``eval/ndcg@20``.
        clients: name -> (ids, values), per-client measurements ``(R,)``.
        refused: ``(step, client, why)`` of answers that were left out.
        releases: ``(step, tensors)`` of asks in which clients uploaded what noise could cover, and
            in how many tensors: what a privacy budget counts.
    """

    scalars: dict[str, float] = field(default_factory=dict)
    clients: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    refused: list[tuple[str, int, str]] = field(default_factory=list)
    releases: list[tuple[str, int]] = field(default_factory=list)

    def scalar(self, name: str, value: float | Tensor) -> None:
        """Note one number."""
        self.scalars[name] = float(value)

    def known(self, name: str, value: float | Tensor) -> bool:
        """Note one number if it is one: NaN is what nobody measured, and stays out.

        Returns:
            Whether it was noted.
        """
        if math.isnan(value):
            return False
        self.scalar(name, value)
        return True

    def per_client(self, name: str, ids: Tensor, values: Tensor) -> None:
        """Note one number a client; both ``(R,)``, kept on the CPU, where loggers read them."""
        self.clients[name] = (ids.cpu(), values.cpu())

    def refuse(self, step: str, client: int, why: str) -> None:
        """Note an answer that was left out."""
        self.refused.append((step, client, why))

    def release(self, step: str, tensors: int) -> None:
        """Note an ask in which clients uploaded what noise could cover."""
        self.releases.append((step, tensors))

    def clear(self) -> None:
        """Forget the round."""
        self.scalars.clear()
        self.clients.clear()
        self.refused.clear()
        self.releases.clear()
