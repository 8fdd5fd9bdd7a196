"""A simulated federation on a Ray cluster: every actor cuts its clients out of the data itself.

The folders are below the run's, on a file system that the cluster's machines share. What is trained
is that of processes on one machine, and so is what is kept.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.core.engines.folder import ClientFolder
from coterie.core.engines.ray_actors import RayActors, connected, cores
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.protocol.card import Card
from coterie.core.registry.data_sets import data_root
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.apart import bound_card, write_folder
from coterie.core.run.experiment import Experiment
from coterie.core.run.lasting import located
from coterie.core.run.simulated import (
    CLIENTS,
    check_cards,
    clients_of,
    count,
    dealt,
    folders_of,
    options,
    run_of,
)
from coterie.core.settings.sections import EngineSettings


@contextmanager
def on_ray(
    experiment: Experiment[Any], federation: Federation, folder: Path
) -> Iterator[Federation]:
    """Put the clients of a federation onto a Ray cluster; the actors end with the block.

    Args:
        experiment: of the run, as its paper makes it of settings.
        federation: of the experiment.
        folder: of the run. Clients that have folders in it go on from them.

    Raises:
        UserError: there is no Ray or no cluster, the experiment has more than its settings, or
            folders are of other data or settings.
    """
    engine: EngineSettings = experiment.settings.engine
    if type(experiment) is not load(find_paper(experiment.paper).experiment):
        raise UserError(
            "actors make data and clients of settings alone, and this run was given more: set "
            "engine.name to processes or in-process"
        )
    root, card = folder.absolute() / CLIENTS, bound_card(experiment, federation)
    with connected(engine.address):
        ids = dealt(federation, root, count(engine, clients_of(federation), cores()))
        check_cards(map(ClientFolder, folders_of(root)), card)
        told = options(engine, root, ids)
        actors = RayActors(
            [root / name for name in ids],
            address=engine.address,
            actors=count(engine, len(ids), cores()),
            cut=Cut(_readable(experiment.settings), card.to_json(), ids, root, told["run"]),
            **told,
        )
        with actors:
            actors.come_up()
            yield replace(federation, exchange=actors)


@dataclass
class Cut:
    """Writes clients' folders out of the data that an experiment has on this machine.

    Args:
        settings: of the experiment.
        card: of the run, as JSON.
        ids: name of each folder -> ``(C,)`` ids of its clients.
        root: where the folders are.
        run: names the run.
    """

    settings: Any
    card: str
    ids: Mapping[str, Tensor]
    root: Path
    run: str

    def __call__(self, name: str, folder: Path) -> None:
        """Write one.

        Raises:
            UserError: this machine has other data than the run's server, or another file system.
        """
        if run_of(self.root) != self.run:
            raise UserError(
                f"{socket.gethostname()} does not see the run's folder: set run.out to one that "
                "all machines of the cluster share"
            )
        experiment, federation, card = self._made
        write_folder(experiment, federation, card, folder, self.ids[name])

    @cached_property
    def _made(self) -> tuple[Experiment[Any], Federation, Card]:
        card = Card.from_json(self.card)
        experiment = load(find_paper(card.paper).experiment)(self.settings)
        federation = experiment.federation()
        if bound_card(experiment, federation).data != card.data:
            raise UserError(
                f"{socket.gethostname()} has other data than the machine of the run's server: put "
                "the same files there"
            )
        return experiment, federation, card


def _readable(settings: Any) -> Any:
    """Settings that name the same files in another process."""
    data = settings.data
    if getattr(data, "root", "") is None:
        settings = replace(settings, data=replace(data, root=str(data_root(None))))
    return located(settings)
