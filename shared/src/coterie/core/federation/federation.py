"""All parts of one federated run; server and clients compute with the same constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coterie.core.errors import UserError
from coterie.core.federation.aggregation import Aggregation
from coterie.core.federation.exchange import Exchange
from coterie.core.metrics.monitor import Monitor
from coterie.core.privacy.sum_noise import SumNoise
from coterie.core.protocol.client import Client, Middleware
from coterie.core.protocol.server import Server
from coterie.core.protocol.uploads import PLAUSIBLE, Bounds
from coterie.core.settings.sections import EngineSettings
from coterie.core.tensors.device import CPU


def bounds(settings: EngineSettings) -> Bounds:
    """What an upload may be, by the settings of a run."""
    return Bounds(settings.max_norm, settings.max_count)


@dataclass(frozen=True)
class Earlier:
    """What a federation was before its data grew.

    Attributes:
        blocks: the first so many blocks are those that there were.
        origin: as `Federation.origin` was.
    """

    blocks: int
    origin: Callable[[], str]


@dataclass(frozen=True)
class Federation:
    """Server half, client half and the data of every block.

    Attributes:
        server: the server half.
        client: the client half; None where the clients are elsewhere.
        blocks: local data of the clients of each block
            (`coterie.core.protocol.client.ClientData`); a federation without a stream has one.
        seed: of everything random.
        rounds: most rounds in a block, for progress bars.
        chunk: clients per stacked call; None = as many as fit into the engine's memory.
        workers: processes that run chunks.
        device: where the run makes its tensors; the halves hold theirs there, and the data of a
            block are copied there when it begins.
        middleware: what uploads pass on their way out.
        bounds: of what an upload may be.
        monitor: what the best round is chosen by; None where none is.
        client_columns: measurements of clients that are columns of their table in W&B.
        default_dtype: format of new tensors that name none, such as those of a module; what it was
            where the federation was made.
        settings: of the run, flat keys and plain values; None takes those of the halves.
        exchange: how clients are reached that are not in this process; None for those that are.
        origin: digest of what numbers of clients and items stand for; asked for once, if ever.
        elsewhere: how many clients there are that are not in this process, as far as is known.
        aggregation: what stands in for the mean of what clients send; None for nothing.
        noise: what the server adds to their sums; None for nothing.
        secret: whether sums leave behind masks.
        earlier: what it was each time before its data grew; a run of that goes on with this one.
    """

    server: Server[Any]
    client: Client[Any, Any] | None
    blocks: Sequence[Any]
    seed: int = 0
    rounds: int = 100
    chunk: int | None = None
    workers: int = 1
    device: torch.device = CPU
    middleware: tuple[Middleware, ...] = ()
    bounds: Bounds = PLAUSIBLE
    monitor: Monitor | None = None
    client_columns: tuple[str, ...] = ()
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    settings: Mapping[str, Any] | None = None
    exchange: Exchange | None = None
    origin: Callable[[], str] = str
    elsewhere: int = 0
    aggregation: Aggregation | None = None
    noise: SumNoise | None = None
    secret: bool = False
    earlier: Sequence[Earlier] = ()

    def __post_init__(self) -> None:
        """Check that the server half has a mean, or sums, for what is to stand in or be added.

        Raises:
            UserError: it has not.
        """
        if self.noise is not None and self.aggregation is not None:
            raise UserError(
                "the server adds noise to sums, and a rule gives none: leave one of them out"
            )
        check_averages(self.server, self.aggregation)
        check_sums(self.server, self.noise)
        check_secret(self.server, self.secret)

    @property
    def combining(self) -> tuple[Aggregation | None, SumNoise | None, bool]:
        """What becomes of uploads on the way to their mean: rule, noise, masks."""
        return self.aggregation, self.noise, self.secret

    @property
    def largest(self) -> int:
        """Clients of the largest block."""
        here = (len(block.ids) for block in self.blocks if block is not None)
        return max(here, default=self.elsewhere)


def check_averages(server: Server[Any], rule: Aggregation | None) -> None:
    """Check that a rule has a mean to stand in for.

    Raises:
        UserError: the server half makes something else of what clients send.
    """
    if rule is not None and not server.averages:
        raise UserError(
            "'aggregate.rule' and 'aggregate.norm_bound' are for methods whose server averages "
            f"what clients send, and {type(server).__name__} does something else with it: leave "
            "them out, or say averages = True in a server half of your own that does"
        )


def check_sums(server: Server[Any], noise: SumNoise | None) -> None:
    """Check that there are sums to add noise to, which hides each client's part.

    Raises:
        UserError: the server half looks at single clients, or some weigh more.
    """
    if noise is not None and not server.sums_alike:
        raise UserError(
            "'privacy.at' server is for methods whose server sums what clients send, each of them "
            f"alike, and {type(server).__name__} does not with these settings: set 'weighting' to "
            "equal if it is not, or leave it out, for noise of the clients' own"
        )


def check_secret(server: Server[Any], secret: bool) -> None:
    """Check that sums are all that a server needs, where it is to learn nothing else.

    Raises:
        UserError: it looks at single clients.
    """
    if secret and not server.sums:
        raise UserError(
            "'aggregate.secret' is for methods whose server needs nothing but sums of what clients "
            f"send, and {type(server).__name__} looks at single clients: leave it out"
        )


def check_reached(federation: Federation, exchange: Exchange) -> None:
    """Check that a rule that compares nodes, or sums that nodes hide, have any to train with.

    A run that is only looked into has its clients in one process whatever it was trained with.

    Raises:
        UserError: all clients are in one process.
    """
    rule = federation.aggregation
    if federation.secret and not exchange.hides:
        raise UserError(
            "'aggregate.secret' hides what processes or machines send, and all clients are in this "
            "process: leave it out, or set engine.name to processes"
        )
    if rule is not None and rule.settings.over == "nodes" and not exchange.folds:
        raise UserError(
            "'aggregate.over' nodes compares processes or machines, and all clients are in this "
            "process: leave it out, or set engine.name to processes"
        )


# Server and clients compute with the same constants, or nothing is computed at all.


def check_alike(server: Server[Any], client: Client[Any, Any] | None) -> None:
    """Compare what both halves compute with and neither sends, before the first round.

    Halves that name no constants have none; a server whose clients run elsewhere has no client half
    to look at, and both are held against the card.

    Raises:
        UserError: one differs; names it.
    """
    theirs = server.constants()
    if theirs and client is not None:
        check_constants(theirs, client.constants())


def check_constants(theirs: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Compare two lists of digests by name.

    Raises:
        UserError: one differs; names it.
    """
    for name in dict.fromkeys([*theirs, *own]):
        if theirs.get(name) != own.get(name):
            raise UserError(
                f"server and clients have another '{name}', a constant of the module that is not "
                "sent: draw it from a seed of its own or load it, so that it is the same whenever "
                "the module is made"
            )
