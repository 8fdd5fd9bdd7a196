"""The server half of methods whose server must know how much data all clients hold together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from coterie.core.federation.cohort import Cohort
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.kit.model_server import ServerModel
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class Sizes:
    """How much data the clients of a block hold.

    Attributes:
        asked: clients that were asked.
        clients: those of them with data; N or m in the papers.
        samples: of all together.
    """

    asked: int = 0
    clients: int = 0
    samples: int = 0

    def total(self, weighting: str) -> int:
        """Sum of the weights of all clients, by "samples" or "equal"."""
        return self.samples if weighting == "samples" else self.clients


@dataclass(frozen=True, kw_only=True)
class SizedModel(ServerModel):
    """State of the server.

    Attributes:
        sizes: of the clients.
        block: number of the block.
    """

    sizes: Sizes = Sizes()
    block: int = 0


S = TypeVar("S", bound=SizedModel)


class SizedServer(FedAvgServer[S]):
    """A server that asks all clients for their number of samples before the first round.

    What it sums up over rounds is of the data of a block: in the next one a client may hold more,
    and would count otherwise. So the sums begin anew with each block, here and, as the block is
    sent along, on the clients (`anew`).
    """

    def start_block(self, state: S, block: int, cohort: Cohort, key: Key) -> S:
        """Enrol newcomers and begin the sums anew."""
        state = super().start_block(state, block, cohort, key)
        return self.cleared(replace(state, sizes=Sizes(), block=block))

    def cleared(self, state: S) -> S:
        """Set to 0 what is summed up over rounds."""
        raise NotImplementedError(f"{type(self).__name__} must say what it sums up")

    def round(self, state: S, cohort: Cohort, key: Key) -> S:
        """One round, as FedAvg's."""
        if state.sizes.asked != len(cohort):
            state = self.resized(state, ask_sizes(cohort))
        return super().round(state, cohort, key)

    def resized(self, state: S, sizes: Sizes) -> S:
        """Take over the sizes; sums over all clients must be brought to them."""
        return replace(state, sizes=sizes)


def ask_sizes(cohort: Cohort) -> Sizes:
    """Ask every client for its number of samples."""
    up = cohort.ask("size", None).up
    if up is None:
        return Sizes(len(cohort))
    return Sizes(len(cohort), int((up.samples > 0).sum()), int(up.samples.sum()))
