"""Workers that are actors on the machines of a Ray cluster, which one owner trusts.

Ray knows no parties and asks nobody for a password: a cluster is for a simulation, or for clients
whose owner is one. An actor has the folders of some clients on its machine. One that is lost is
started again, elsewhere if need be, and goes on from its folders if these are there: they must be
on a file system that the machines share, or their clients are away until their machine is back.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.core.engines.folder import keep_best
from coterie.core.engines.nodes import START
from coterie.core.engines.worker import Service, ready
from coterie.core.engines.workers import Worker, Workers
from coterie.core.errors import UserError
from coterie.core.files import writing

logger = logging.getLogger(__name__)
LOCAL = "local"
"""Address of a cluster that is this machine alone, and ends with the connection."""
_REACH, _ANSWER = 10.0, 60.0  # seconds for a cluster's head to be reached, and to answer
_PROBE = (
    "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False)"
)
Cut = Callable[[str, Path], None]
"""Writes the clients' folder of a name into a path, on the machine where it will be."""


class RayActors(Workers):
    """Actors on a Ray cluster.

    Args:
        folders: of clients, each in one, by their paths on the actors' machines.
        run: names the run; private state is of one run.
        address: of the cluster, HOST:PORT; None for that which RAY_ADDRESS names, or else for this
            machine alone.
        actors: how many there are, by default one for each folder.
        cut: writes a folder that is not there when its actor is first started.
        start: seconds that an actor has to come up, with what ``cut`` takes.
        options: of `coterie.core.engines.nodes.Nodes`.

    Raises:
        UserError: Ray is not installed, or no cluster is reached.

    Example:
        def cut(name: str, folder: Path) -> None:
            rows = read_part(name)
            ClientFolder.create(folder, card, rows.ids, None, {0: rows})

        folders = [Path("/data/clients-0"), Path("/data/clients-1")]
        with RayActors(folders, "trial", cut=cut) as actors:
            run = FederatedRun(federation_of(card, Path("server"), actors))
            run.advance()
    """

    def __init__(
        self,
        folders: Sequence[Path],
        run: str,
        *,
        address: str | None = None,
        actors: int | None = None,
        cut: Cut | None = None,
        start: float = START,
        **options: Any,
    ) -> None:
        self._connection = ExitStack()
        self._connection.enter_context(connected(address))

        numbers = itertools.count()

        def make(own: Sequence[Path]) -> RayActor:
            return RayActor(own, start, cut, next(numbers))

        super().__init__(folders, run, make, workers=actors, start=start, **options)

    def close(self) -> None:
        """End the actors, and the connection if it was made here."""
        super().close()
        self._connection.close()


class RayActor(Worker[Any]):
    """One actor.

    Args:
        folders: of its clients.
        start: seconds that it has to come up.
        cut: writes a folder that is not there when the actor is first started.
        number: of the actor; machines are taken in turn.
    """

    tries = 3  # a machine that is lost is known to be so after some seconds

    def __init__(
        self, folders: Sequence[Path], start: float, cut: Cut | None = None, number: int = 0
    ) -> None:
        super().__init__(folders, start)
        self._cut, self._number = cut, number

    def spawn(self) -> Any:
        """Have Ray start an actor, on a machine that is there."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        places = _places()
        if not places:
            logger.warning("no machine of the Ray cluster has a CPU")
            return None
        here = NodeAffinitySchedulingStrategy(places[self._number % len(places)], soft=True)
        # It holds no CPU while it runs, so that what is left of a cluster takes all actors.
        actor = ray.remote(Served).options(scheduling_strategy=here, max_restarts=0)
        return actor.remote(self.folders, self._cut)

    def comes_up(self, handle: Any) -> bool:
        """Wait until it has its clients."""
        told = self._told(handle.trouble.remote(), self.start)
        if told:
            logger.warning("%s", told)
        return told == ""

    def ended(self, handle: Any) -> bool:
        """Not known without a wait: what it does not answer is asked of another."""
        return False

    def talk(self, handle: Any, name: str, parcel: bytes) -> bytes | None:
        """Call it and wait."""
        return self._told(handle.answer.remote(name, parcel))

    def end(self, handle: Any) -> None:
        """Kill it."""
        import ray

        with suppress(Exception):  # it is gone, or Ray is
            ray.kill(handle)

    def keep_best(self, folder: Path, heard: str) -> None:
        """Have it keep private state, where the folder is."""
        if self._handle is not None:
            self._told(self._handle.keep_best.remote(folder.name, heard))

    def _told(self, what: Any, seconds: float | None = None) -> Any:
        """What an actor answers; None if it ends, or time does."""
        import ray

        try:
            return ray.get(what, timeout=seconds)
        except ray.exceptions.RayError as error:
            logger.debug("an actor is gone: %s", error)
            return None


class Served:
    """What runs in an actor: the clients of some folders.

    Args:
        folders: of them.
        cut: writes one that is not there.
    """

    def __init__(self, folders: Sequence[Path], cut: Cut | None) -> None:
        self._held, self._trouble = ExitStack(), ""
        try:
            if cut is not None:
                cut_those_missing(folders, cut)
            services = [Service(folder) for folder in folders]
            self._held.enter_context(ready(services))
        except UserError as error:
            self._trouble = str(error)
            return
        self._services = {one.folder.name: one for one in services}

    def trouble(self) -> str:
        """Why there are no clients here; empty if there are."""
        return self._trouble

    def answer(self, name: str, parcel: bytes) -> bytes:
        """Answer a parcel for a folder."""
        return self._services[name].answer(parcel)

    def keep_best(self, name: str, heard: str) -> None:
        """Keep private state of a folder as `coterie.core.engines.folder.keep_best`."""
        keep_best(self._services[name].folder, heard)


def cut_those_missing(folders: Sequence[Path], cut: Cut) -> None:
    """Write the folders that are not there, each whole or not at all.

    Raises:
        UserError: as ``cut``, or one cannot be written.
    """
    for folder in folders:
        if folder.exists():
            continue
        if not folder.parent.is_dir():
            raise UserError(f"{socket.gethostname()} has no {folder.parent}: make it there")
        partial = folder.with_name(f".{folder.name}-partial")
        with writing(folder.parent):
            shutil.rmtree(partial, ignore_errors=True)
            try:
                cut(folder.name, partial)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Be connected to a cluster meanwhile; a connection that is there is used and stays.

    Raises:
        UserError: Ray is not installed, or no cluster is reached.
    """
    if find_spec("ray") is None:
        raise UserError(
            "Ray is not installed: say pip install 'coterie-core[ray]' with coterie's "
            "constraints.txt"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers of every run
    import ray

    if ray.is_initialized():
        yield
        return
    where = address or os.environ.get("RAY_ADDRESS") or LOCAL
    if where != LOCAL:
        _check_reached(where)
    try:
        ray.init(address=where, logging_level=logging.ERROR)
    except Exception as error:  # of many kinds, with pages of advice
        said = f"{error}".strip().partition("\n")[0][:200] or type(error).__name__
        raise UserError(f"Ray does not start at '{where}': {said}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reached(address: str) -> None:
    """Check that a cluster answers, as Ray would try for minutes, and then end the process.

    Raises:
        UserError: none does.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _REACH).close()
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE, address],
            capture_output=True,
            text=True,
            timeout=_ANSWER,
            check=False,
        )
        lines = probe.stderr.strip().splitlines()[-1:]
        why = lines[0][:200] if probe.returncode and lines else ""
        if probe.returncode == 0:
            return
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, OverflowError):
        why = "it is no HOST:PORT"
    except subprocess.TimeoutExpired:
        why = "no answer: is it another version of Ray, or does it want a token?"
    raise UserError(
        f"no Ray cluster is reached at '{address}' ({why}): start one by ray start --head, and "
        "name its HOST:PORT by engine.address or RAY_ADDRESS"
    )


def cores() -> int:
    """How many CPUs the cluster has that this process is connected to; at least 1."""
    return max(len(_places()), 1)


def _places() -> list[str]:
    """A node for each CPU of the cluster, in turn: first one of each node, then the second ones."""
    import ray

    cpus = {
        one["NodeID"]: int(one["Resources"].get("CPU", 0)) for one in ray.nodes() if one["Alive"]
    }
    return [node for _, node in sorted((n, node) for node in cpus for n in range(cpus[node]))]
