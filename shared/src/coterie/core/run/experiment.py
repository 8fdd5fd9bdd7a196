"""What a paper gives to the command line: one run's data, halves, description and needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from rich.filesize import decimal
from torch import Tensor

from coterie.core.data.interactions.canonical import data_digest
from coterie.core.data.interactions.interactions import Dropped, Interactions
from coterie.core.errors import UserError
from coterie.core.federation.aggregation import aggregation_of
from coterie.core.federation.federation import Earlier, Federation, bounds
from coterie.core.privacy.build import middleware
from coterie.core.privacy.sum_noise import simulated_secret, sum_noise
from coterie.core.protocol.card import Card
from coterie.core.protocol.client import Client
from coterie.core.protocol.server import Server
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.checkpoint import LAST
from coterie.core.run.lasting import from_the_start, located
from coterie.core.run.products import exported_products
from coterie.core.run.scoring import (
    Scored,
    recommender_server,
    score_clients,
    scores_of_newcomer,
)
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.schema import values_of
from coterie.core.standalone import Standalone
from coterie.core.tensors.device import choose_device, computing_on, machine_memory
from coterie.core.tensors.saved import digest

if TYPE_CHECKING:
    from coterie.core.privacy.attack import AttackReport
    from coterie.core.run.driver import FederatedRun
    from coterie.core.run.exported import Asked, Exported


FASTEST = 1e13
"""Operations a second of a fast accelerator: what is merely slow here is not refused."""
STEP = 1e-4
"""Seconds that a step of an optimiser takes at least, however small it is."""
_DAY = 24 * 3600


@dataclass(frozen=True)
class Need:
    """What one part of a run needs at least.

    Attributes:
        what: the part, as ``the item tables``.
        settings: dotted keys that it grows with.
        memory: bytes that it holds at a time.
        operations: of a round.
        steps: of a round, one after another.
    """

    what: str
    settings: tuple[str, ...]
    memory: int = 0
    operations: int = 0
    steps: int = 0

    @property
    def days(self) -> float:
        """What a round takes, on the fastest machine."""
        return max(self.operations / FASTEST, self.steps * STEP) / _DAY


def check(needs: Sequence[Need], memory: int | None = None) -> None:
    """Refuse a run that this machine cannot hold, or whose rounds would not end within a day.

    Estimates are from below, so what is refused is hopeless.

    Args:
        needs: of all parts.
        memory: bytes of the machine; default is asked of the system.

    Raises:
        UserError: it needs too much; what was estimated and what to lower is named.

    Example:
        >>> check([Need("the item table", ("model.dim",), memory=8 << 40)], memory=16 << 30)
        Traceback (most recent call last):
        ...
        coterie.core.errors.UserError: the item table would take about 8.8 TB of memory, and this \
machine has 17.2 GB: lower --model.dim
    """
    if not needs:
        return
    here = machine_memory() if memory is None else memory
    largest = max(needs, key=lambda need: need.memory)
    if sum(need.memory for need in needs) > here:
        raise UserError(
            f"{largest.what} would take about {decimal(largest.memory)} of memory, and this "
            f"machine has {decimal(here)}: lower {_flags(largest)}"
        )
    longest = max(needs, key=lambda need: need.days)
    if longest.days > 1:
        raise UserError(
            f"{longest.what} would take about {longest.days:.2g} days a round, on the fastest "
            f"machine: lower {_flags(longest)}"
        )


def _flags(need: Need) -> str:
    return " or ".join(f"--{key}" for key in need.settings)


# What a paper gives to the command line: one run's data, halves and description.

Settings = TypeVar("Settings", bound=BaseSettings)


class Experiment(Generic[Settings]):
    """One (paper, data, method, seed).

    A paper says what its data are and how its halves are made; the rest has defaults.

    Args:
        settings: with everything that the reading leaves open filled in.

    Attributes:
        paper: name by which it is installed.
        device: where a run of it makes its tensors. The data are on the CPU.
        tested: the checkpoint whose state holds what was tested.

    Raises:
        UserError: a GPU is asked for, and there is none; or torch makes other tensors than those
            of float32 by default.
    """

    paper: ClassVar[str] = ""
    tested: ClassVar[str] = LAST

    def __init__(self, settings: Settings) -> None:
        if torch.get_default_dtype() != torch.float32:
            raise UserError(
                f"torch's default format is {torch.get_default_dtype()}, and a paper's is "
                "'engine.dtype': call torch.set_default_dtype(torch.float32) before"
            )
        self.settings = settings
        self.device = choose_device(settings.engine.device)

    def public(self) -> dict[str, Any]:
        """Give the facts about the data that everybody may know, as plain values. Default: none."""
        return {}

    def public_files(self) -> dict[str, Path]:
        """Give files that every client and the server need beside the card. Default: none.

        Returns:
            Name in their folders -> where the file is.
        """
        return {}

    def server_files(self, folder: Path) -> None:
        """Write what the server alone holds into its folder. Default: nothing."""

    def client_files(self, folder: Path, ids: Tensor) -> None:
        """Write what clients ``ids``, and nobody else, hold beside data and keys. Default: nothing.

        ``folder`` is their own.
        """

    @cached_property
    def card(self) -> Card:
        """All that both halves share: settings and public facts, nobody's data."""
        return Card.of(self.paper, self.settings, self.public())

    @property
    def source(self) -> str:
        """What the data are, for people."""
        return self.settings.data.name

    def needs(self) -> Sequence[Need]:
        """Estimate what the run needs, from settings and sizes of the data; nothing is built.

        Default: nothing is known, so nothing is refused.
        """
        return []

    @property
    def blocks(self) -> Sequence[Any]:
        """The clients' data of every block (`coterie.core.protocol.client.ClientData`)."""
        raise NotImplementedError(f"{type(self).__name__} must say what its clients hold")

    def halves(self) -> tuple[Server[Any], Client[Any, Any]]:
        """Build both halves, where the run makes its tensors. Default: from the card."""
        paper = find_paper(self.paper)
        assert paper.server_half is not None
        assert paper.maker is not None
        everybody = torch.cat([data.ids for data in self.blocks]).unique()
        return load(paper.server_half)(self.card, everybody), load(paper.maker)(self.card)

    def federation(self) -> Federation:
        """Join both halves with the clients' data.

        Raises:
            UserError: the clients are on other machines.
        """
        settings = self.settings
        if settings.engine.name == "flower":
            raise UserError(
                "the clients of 'engine.name' flower are on other machines, and nothing of them is "
                f"here: train by coterie deploy {self.paper}, and see what a run measured in its "
                "folder"
            )
        with computing_on(self.device):
            server, client = self.halves()
        return Federation(
            server=server,
            client=client,
            blocks=self.blocks,
            seed=settings.seed,
            rounds=settings.rounds,
            chunk=settings.engine.chunk,
            workers=settings.engine.workers,
            device=self.device,
            middleware=middleware(settings.privacy, client.steps()),
            bounds=bounds(settings.engine),
            aggregation=aggregation_of(settings.aggregate),
            noise=sum_noise(
                settings.privacy, simulated_secret(from_the_start(values_of(settings)))
            ),
            secret=settings.aggregate.secret,
            monitor=getattr(server, "monitor", None),
            client_columns=self.client_columns(),
            settings=values_of(located(settings)),
            origin=self.origin,
            earlier=self.earlier(),
        )

    def standalone(self, client: int | None, network: str | None) -> Standalone[Any, Any, Any]:
        """Give a network to be trained by any Trainer, without a federation. Default: none.

        The settings' method is then `Paper.central`, or `Paper.local` with a client.

        Args:
            client: one of those in the data, on whose data it is trained; None = on those of all.
            network: one of `Paper.networks`; None = that of the settings.

        Raises:
            UserError: it cannot be trained by itself.
        """
        raise UserError(f"{self.paper} has no network that can be trained by itself")

    def origin(self) -> str:
        """Digest of what the numbers of clients, items and fields stand for.

        Default: that of the public facts.
        """
        return digest(self.public())

    def earlier(self) -> Sequence[Earlier]:
        """Say what the data were before each time they grew, oldest first. Default: they did not.

        A paper whose section ``data`` is a `coterie.core.settings.sections.GrowingData` says it.
        """
        return ()

    def client_columns(self) -> tuple[str, ...]:
        """Name measurements of clients that are columns of their table. Default: none."""
        return ()

    def elsewhere(self) -> str:
        """Say what of a run is on other machines, so that no round can be run again here.

        Default: nothing but what `engine.name` says.
        """
        return ""

    def describe_data(self) -> list[dict[str, Any]]:
        """Tabulate the data, one row a block. Default: no table."""
        return []

    def left_out(self) -> Sequence[Dropped]:
        """Count what filters left out of the data, in their order. Default: nothing is known."""
        return []

    def finish(self, module: FederatedRun, folder: Path) -> None:
        """Write what a finished run has beside metrics, curves and checkpoints into its folder."""

    def final_metrics(self, module: FederatedRun) -> dict[str, float]:
        """Give the final measurements of a run. Default: what its tests noted."""
        return dict(module.results)

    def shown(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Choose the final measurements that are printed at the end of a run. Default: all."""
        return dict(metrics)

    def client_table(self, module: FederatedRun) -> list[dict[str, Any]]:
        """Tabulate the final measurements of every client. Default: they are too many."""
        return []

    def notes(self, module: FederatedRun) -> list[str]:
        """Say, in a line each, what the user should know of a finished run beside its numbers."""
        return []

    def exported(self, module: FederatedRun, asked: Asked) -> Exported:
        """Give the model of the tested round to other programs. Default: there is none.

        Raises:
            UserError: nothing can be given, or there is no such client or user.
        """
        raise UserError(f"{self.paper} has no model that other programs could be given")

    def reference(self) -> dict[str, float]:
        """The paper's values of the same measurements. Default: it has none."""
        return {}


class RecommendsToUsers(Experiment[Settings]):
    """An experiment whose clients are recommended items.

    By default every user is a client; the halves are a `RecommendsItems` and a `ServesItems`.
    """

    @property
    def interactions(self) -> Interactions:
        """The data as the clients' ids and item numbers refer to it."""
        raise NotImplementedError(f"{type(self).__name__} must say what its data are")

    @property
    def source(self) -> str:
        """What the data are, for people."""
        return self.interactions.source

    def left_out(self) -> Sequence[Dropped]:
        """Count what filters left out of the interactions, in their order."""
        return self.interactions.dropped

    def origin(self) -> str:
        """Digest of the data with the ids of users and items."""
        return data_digest(self.interactions)

    def score_users(self, module: FederatedRun, users: Tensor) -> Iterator[Scored]:
        """Score all items for users of the data, some at a time, in any order.

        A user's scores do not depend on who else is asked for, but for rounding.

        Args:
            module: a run.
            users: ``(U,)`` int64, numbers, each once; at least one.

        Yields:
            Places in ``users``, ``(B,)``, and the scores ``(B, n_items)`` of those, -inf for items
            that nobody can score; or why those users have none.
        """
        return score_clients(module, users, self.interactions.n_items)

    def scores_alike(self, module: FederatedRun) -> bool:
        """Whether a user's scores are the same to the bit whoever else is asked for at once."""
        return recommender_server(module).serves_all_alike

    def scores_for_newcomer(self, module: FederatedRun, items: Tensor) -> Tensor:
        """Score all items, ``(1, n_items)``, for someone new who had ``items``, ``(n,)``.

        The oldest is first.
        """
        return scores_of_newcomer(module, items)

    def exported(self, module: FederatedRun, asked: Asked) -> Exported:
        """Give the rows of the items, and with a user its own vector.

        Raises:
            UserError: as `coterie.core.run.products.exported_products`.
        """
        return exported_products(module, self.interactions, asked)

    def attack(self, module: FederatedRun, scales: Sequence[float]) -> dict[float, AttackReport]:
        """Attack one upload of every client, behind Laplace noise of several scales.

        Raises:
            UserError: no upload can be attacked.
        """
        raise UserError("no item rows leave a client, so there is nothing to attack")
