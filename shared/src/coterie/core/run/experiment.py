"""What a paper gives to the command line: one run's data, halves and description."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.federation.federation import Federation
from coterie.core.run.estimate import Need
from coterie.core.settings.sections import (
    EngineSettings,
    LoggerSettings,
    PrivacySettings,
    RunSettings,
)

if TYPE_CHECKING:
    from coterie.core.privacy.attack import AttackReport
    from coterie.core.run.rounds import FederatedModule


class Named(Protocol):
    """Settings of data that are found by name."""

    @property
    def name(self) -> str:
        """Name of the data set."""
        ...


class PaperSettings(Protocol):
    """The settings that every paper has beside its own."""

    @property
    def method(self) -> str:
        """Method of the paper, or a baseline."""
        ...

    @property
    def reading(self) -> str:
        """Reading of the paper: recommended, literal or released."""
        ...

    @property
    def seed(self) -> int:
        """Seed of everything random."""
        ...

    @property
    def data(self) -> Named:
        """Which data."""
        ...

    @property
    def engine(self) -> EngineSettings:
        """How clients are simulated."""
        ...

    @property
    def privacy(self) -> PrivacySettings:
        """Clipping and noise."""
        ...

    @property
    def logger(self) -> LoggerSettings:
        """Where numbers go."""
        ...

    @property
    def run(self) -> RunSettings:
        """Run folder and progress."""
        ...


class Experiment(Protocol):
    """One (paper, data, method, seed)."""

    settings: Any  # PaperSettings, with everything the reading leaves open filled in

    @property
    def source(self) -> str:
        """What the data are, for people."""
        ...

    def needs(self) -> Sequence[Need]:
        """Estimate what the run needs, from settings and sizes of the data; nothing is built."""
        ...

    def federation(self) -> Federation:
        """Build both halves and the clients' data."""
        ...

    def describe_data(self) -> list[dict[str, Any]]:
        """Tabulate the data, one row a block."""
        ...

    def finish(self, module: FederatedModule, folder: Path) -> None:
        """Write what a finished run has beside metrics, curves and checkpoints into its folder."""
        ...

    def final_metrics(self, module: FederatedModule) -> dict[str, float]:
        """Give the final measurements of a run: its results, with averages and baselines added."""
        ...

    def client_table(self, module: FederatedModule) -> list[dict[str, Any]]:
        """Tabulate the final measurements of every client; empty where they are too many."""
        ...

    def notes(self, module: FederatedModule) -> list[str]:
        """Say, in a line each, what the user should know of a finished run beside its numbers."""
        ...

    def reference(self) -> dict[str, float]:
        """The paper's values of the same measurements; empty where it has none."""
        ...


@runtime_checkable
class Recommender(Experiment, Protocol):
    """An experiment whose clients are recommended items."""

    @property
    def interactions(self) -> Interactions:
        """The data as the clients' ids and item numbers refer to it."""
        ...

    def scores(self, module: FederatedModule, user: int) -> Tensor:
        """Score all items for a user of the data, ``(1, n_items)``.

        Raises:
            UserError: the user never took part.
        """
        ...

    def scores_for_newcomer(self, module: FederatedModule, items: Tensor) -> Tensor:
        """Score all items, ``(1, n_items)``, for someone new who had ``items``, ``(n,)``."""
        ...

    def attack(self, module: FederatedModule, scales: Sequence[float]) -> dict[float, AttackReport]:
        """Attack one upload of every client, behind Laplace noise of several scales."""
        ...
