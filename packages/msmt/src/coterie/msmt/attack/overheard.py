"""What is heard between the server and the scenarios of a run: what truly crosses, no more.

An ear stands where the exchange does, so it hears messages as the server gets them, clipped and
with noise where a run has these, and never sees the scenarios' private state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.federation.exchange import Answers, Exchange, Request
from coterie.core.privacy.releases import releases
from coterie.core.protocol.cohort import Aligned
from coterie.core.protocol.messages import Down, Up
from coterie.core.tensors import tree


@dataclass(frozen=True)
class Overheard:
    """What crossed between the server and one scenario in one ask.

    Attributes:
        step: what was asked for.
        scenario: its number.
        down: what it received, of one scenario.
        up: what it sent, as the server gets it.
    """

    step: str
    scenario: int
    down: Down | None
    up: Up | None

    def norm(self) -> float:
        """L2 norm of all that clipping is about; 0 where nothing is."""
        squares = [value.double().square().sum() for value in releases(self.up)]  # type: ignore[union-attr]
        return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


class Ear(Exchange):
    """An exchange that hears what passes through another one, and changes nothing.

    Args:
        inner: what reaches the scenarios.

    Attributes:
        heard: what crossed since it was last emptied, in order.
    """

    def __init__(self, inner: Exchange) -> None:
        self.inner = inner
        self.heard: list[Overheard] = []

    def present(self, block: int) -> Tensor:
        """Who takes part, as the inner exchange says."""
        return self.inner.present(block)

    def enrol(self, ids: Tensor, block: int) -> Tensor:
        """Let the inner exchange enrol newcomers."""
        return self.inner.enrol(ids, block)

    def ask(self, request: Request) -> Iterator[Answers]:
        """Hear what is asked and answered, of those whose answer counts."""
        for answers in self.inner.ask(request):
            self.heard += _crossed(request, answers)
            yield answers

    def to_plain(self) -> Any:
        """The private state of the inner exchange, for its checkpoint; it is not looked into."""
        return self.inner.to_plain()

    def load_plain(self, plain: Any) -> None:
        """Restore the inner exchange."""
        self.inner.load_plain(plain)

    def emptied(self) -> list[Overheard]:
        """Give what was heard, and forget it."""
        heard, self.heard = self.heard, []
        return heard


def _crossed(request: Request, answers: Answers) -> Iterator[Overheard]:
    for place, scenario in enumerate(answers.ids.tolist()):
        one = torch.tensor([place])
        down = request.down_for(answers.ids[one])
        if isinstance(request.down, Aligned):
            down = tree.as_one(down)
        up = None if answers.up is None else tree.as_one(tree.take(answers.up, one))
        yield Overheard(request.step.name, scenario, down, up)
