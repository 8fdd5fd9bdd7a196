"""Workers that are actors on the machines of a Ray cluster, which one owner trusts.

Ray knows no parties: a cluster is for a simulation, or for clients who have one owner. The clients'
folders are on a file system that all machines share, with locks. So an actor that is lost is
started again, elsewhere if need be, and goes on from its folders.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from coterie.core.engines.cut import Cut, cut_those_missing
from coterie.core.engines.nodes import START
from coterie.core.engines.worker import Service, ready
from coterie.core.engines.workers import Worker, Workers
from coterie.core.errors import UserError
from coterie.core.extras import require
from coterie.core.federation.exchange import TooFew

logger = logging.getLogger(__name__)
LOCAL = "local"
"""Address of a cluster that is this machine alone, and ends with the connection."""
_REACH, _ANSWER = 10.0, 60.0  # seconds for a cluster's head to be reached, and to answer
_PROBE = (
    "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False)"
)


class RayActors(Workers):
    """Actors on a Ray cluster.

    Args:
        folders: of clients, each in one, where all machines see them.
        run: names the run; private state is of one run.
        address: of the cluster, HOST:PORT; None for that which RAY_ADDRESS names, or else for this
            machine alone.
        actors: how many there are, by default one for each folder.
        cut: writes a folder that is not there when its actor first comes up.
        start: seconds that an actor has to come up, with what ``cut`` takes.
        options: of `coterie.core.engines.nodes.Nodes`.

    Raises:
        UserError: Ray is not installed, or no cluster is reached.

    Example:
        def cut(name: str, folder: Path) -> None:
            rows = read_part(name)
            ClientFolder.create(folder, card, rows.ids, None, {0: rows})

        folders = [Path("/shared/clients-0"), Path("/shared/clients-1")]
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
        numbers = itertools.count()

        def make(own: Sequence[Path]) -> RayActor:
            return RayActor(own, start, cut, next(numbers))

        with ExitStack() as held:
            held.enter_context(connected(address))
            super().__init__(folders, run, make, workers=actors, start=start, **options)
            self._connection = held.pop_all()

    def close(self) -> None:
        """End the actors, and the connection if it was made here."""
        with self._connection:
            super().close()

    def come_up(self) -> None:
        """Have all actors come up.

        Raises:
            UserError: why one has not got its clients.
        """
        with suppress(TooFew):  # who says nothing may come yet
            self.present(0)
        troubles = [one.trouble for one in self.workers if isinstance(one, RayActor)]
        if trouble := next(filter(None, troubles), None):
            raise UserError(trouble)


class RayActor(Worker[Any]):
    """One actor.

    Args:
        folders: of its clients.
        start: seconds that it has to come up.
        cut: writes a folder that is not there when the actor first comes up.
        number: of the actor; machines are taken in turn.

    Attributes:
        trouble: why it has not got its clients; empty if nothing is known to be in the way.
    """

    tries = 3  # a machine that is lost is known to be so after some seconds

    def __init__(
        self, folders: Sequence[Path], start: float, cut: Cut | None = None, number: int = 0
    ) -> None:
        super().__init__(folders, start)
        self._cut, self._number, self.trouble = cut, number, ""

    def spawn(self) -> Any:
        """Have Ray start an actor, on a machine that is there."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        try:
            places = _places()
            here = NodeAffinitySchedulingStrategy(places[self._number % len(places)], soft=True)
            # It holds no CPU while it runs, so that what is left of a cluster takes all actors.
            actor = ray.remote(Served).options(scheduling_strategy=here, max_restarts=0)
            return actor.remote(self.folders, self._cut)
        except ZeroDivisionError:
            logger.warning("no machine of the Ray cluster has a CPU")
        except Exception as error:  # no connection any more, or a cut that cannot be sent
            logger.warning("cannot start an actor: %s", _line(error))
        return None

    def comes_up(self, handle: Any) -> bool:
        """Wait until it has its clients."""
        told = self._told(handle, lambda: handle.trouble.remote(), self.start)
        self.trouble = told or ""
        if told == "":
            self._cut = None  # what is not there any more was lost, and is not made anew
            return True
        if self.trouble and self._cut is None:  # else whoever starts the run is told
            logger.warning("%s", self.trouble)
        self._number += 1  # the next machine may be better
        return False

    def ended(self, handle: Any) -> bool:
        """Not known without a wait: what it does not answer is asked of another."""
        return False

    def talk(self, handle: Any, name: str, parcel: bytes) -> bytes | None:
        """Call it and wait."""
        found: bytes | None = self._told(handle, lambda: handle.answer.remote(name, parcel))
        return found

    def end(self, handle: Any) -> None:
        """Kill it."""
        import ray

        with suppress(Exception):  # it is gone, or Ray is
            ray.kill(handle)

    def _told(self, handle: Any, ask: Callable[[], Any], seconds: float | None = None) -> Any:
        """What an actor answers; None if it ends, or time does."""
        import ray

        try:
            return ray.get(ask(), timeout=seconds)
        except Exception as error:  # of many kinds: it died, it failed, there is no memory
            if self._handle is handle:  # nobody here has ended it
                late = isinstance(error, ray.exceptions.GetTimeoutError)
                why = f"no word in {seconds:g} s, see engine.start" if late else _line(error)
                logger.warning("an actor with %s is lost: %s", self.folders[0].name, why)
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


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Be connected to a cluster meanwhile; a connection that is there is used and stays.

    Raises:
        UserError: Ray is not installed, or no cluster is reached.
    """
    require("ray", "engine 'ray'", "ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers of every run
    import ray

    if ray.is_initialized():
        yield
        return
    where = address or os.environ.get("RAY_ADDRESS") or LOCAL
    if where != LOCAL:
        _check_reached(where)
    try:
        with _own_handlers():
            ray.init(address=where, logging_level=logging.ERROR)
    except Exception as error:  # of many kinds, with pages of advice
        raise UserError(f"Ray does not start at '{where}': {_line(error)}") from error
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


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Put back what is done at SIGTERM, which Ray replaces by an end at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _line(error: Exception) -> str:
    """What an error says, in a line, or what caused it."""
    cause = getattr(error, "cause", None) or error
    return f"{cause}".strip().partition("\n")[0][:200] or type(cause).__name__


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
