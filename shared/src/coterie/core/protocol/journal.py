"""What a round measured, handed to the loggers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from coterie.core.errors import UserError

N = TypeVar("N")


@dataclass(frozen=True)
class Release:
    """An ask in which clients uploaded what noise could cover.

    Attributes:
        step: that was asked for.
        tensors: in how many tensors.
        asked: ``(R,)`` ids of who was: who did not answer in time may have all the same.
        heard: ``(A,)`` ids of those whose answer counts.
        among: of how many clients those who were asked are a random sample.
    """

    step: str
    tensors: int
    asked: Tensor
    heard: Tensor
    among: int


@dataclass
class Journal:
    """Numbers of the current round; the driver empties it after logging.

    Attributes:
        scalars: name -> value, such as ``eval/ndcg@20``.
        clients: name -> (ids, values), per-client measurements ``(R,)``.
        refused: ``(step, client, why)`` of answers that were left out.
        releases: asks in which clients uploaded what noise could cover: what a privacy budget
            counts.
        asked: step -> how many answers were asked for.
        unheard: step -> why answers were refused, and how many.
    """

    scalars: dict[str, float] = field(default_factory=dict)
    clients: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    refused: list[tuple[str, int, str]] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    unheard: dict[str, Counter[str]] = field(default_factory=dict)

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

    def rename(self, prefix: str, new: str) -> None:
        """Let the names that begin with a prefix begin with another one.

        Example:
            >>> journal = Journal({"eval/auc": 0.7})
            >>> journal.rename("eval/", "start/")
            >>> journal.scalars
            {'start/auc': 0.7}
        """
        self.scalars = _renamed(self.scalars, prefix, new)
        self.clients = _renamed(self.clients, prefix, new)

    def refuse(self, step: str, client: int, why: str) -> None:
        """Note an answer that was left out."""
        self.refused.append((step, client, why))

    def answered(self, step: str, asked: int, refused: dict[int, str]) -> None:
        """Note how many were asked, and whose answers were refused; not who tells of divergence."""
        self.asked[step] = self.asked.get(step, 0) + asked
        self.unheard.setdefault(step, Counter()).update(refused.values())

    def check_heard(self) -> None:
        """Check that somebody's answer to every step counts, where any was asked for.

        Raises:
            UserError: all of them were refused, as they would be in every round to come.
        """
        for step, asked in self.asked.items():
            why = self.unheard[step]
            if asked and why.total() == asked:
                reasons = "; ".join(f"{one} ({n} of {asked})" for one, n in why.most_common(3))
                raise UserError(
                    f"nobody's answer to '{step}' counts, so the run cannot go on: {reasons}; what "
                    "diverges wants a lower learning rate or clipped gradients, what has no loss "
                    "other samples"
                )

    def release(self, release: Release) -> None:
        """Note an ask in which clients uploaded what noise could cover."""
        self.releases.append(release)

    def go_back(self) -> None:
        """Forget a try of the round, but for what was released in it: that cannot be taken back."""
        released = list(self.releases)
        self.clear()
        self.releases.extend(released)

    def clear(self) -> None:
        """Forget the round."""
        self.scalars.clear()
        self.clients.clear()
        self.refused.clear()
        self.releases.clear()
        self.asked.clear()
        self.unheard.clear()


def _renamed(noted: dict[str, N], prefix: str, new: str) -> dict[str, N]:
    return {
        new + name.removeprefix(prefix) if name.startswith(prefix) else name: value
        for name, value in noted.items()
    }
