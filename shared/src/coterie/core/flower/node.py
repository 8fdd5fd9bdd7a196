"""A node: the process with its clients and Flower's SuperNode, kept up together. Torch-free."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.engines.serving import serving
from coterie.core.errors import UserError
from coterie.core.files import write_json
from coterie.core.flower.node_folder import SOCKET, STATE, client_folders
from coterie.core.flower.own_app import write_programs
from coterie.core.flower.programs import environment, free_port, program
from coterie.core.flower.supervisor import Kept, last_line

_LONGEST = 60  # characters of a folder for sockets
_LOOK = 1.0  # seconds between two looks whether all is well
_BAD_INPUT = 2  # exit status of the clients' process where its owner must mend something


@dataclass(frozen=True)
class SuperLink:
    """Where the server is, and by what this node and it know each other.

    Attributes:
        address: as host:port.
        authority: file with the certificate that signed the server's.
        key: file with the node's private key.
    """

    address: str
    authority: Path
    key: Path

    def check(self) -> None:
        """Check that the files are there.

        Raises:
            UserError: one is not, or the address has no port.
        """
        for path, what in ((self.authority, "certificate"), (self.key, "key")):
            if not path.is_file():
                raise UserError(f"there is no {what} {path}: check the path")
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal():
            raise UserError(f"'{self.address}' is no address: say HOST:PORT")


def up(node: Path, link: SuperLink, stop: threading.Event, tell: Callable[[str], object]) -> None:
    """Keep a node up until it is stopped.

    Args:
        node: its folder.
        link: where the server is.
        stop: ends it.
        tell: is told what goes wrong.

    Raises:
        UserError: the folder is not complete, or its clients' process refuses to begin.
    """
    link.check()
    client_folders(node)
    with serving(node, patience=0.0), _sockets() as sockets:
        _kept(node, link, sockets, stop, tell)


@contextmanager
def _sockets() -> Iterator[Path]:
    """A folder with a short path, for its owner alone: sockets take no long ones."""
    usual = tempfile.gettempdir()
    short = None if len(usual) < _LONGEST else "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="coterie-", dir=short))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kept(
    node: Path,
    link: SuperLink,
    sockets: Path,
    stop: threading.Event,
    tell: Callable[[str], object],
) -> None:
    clients = supernode = None
    try:
        clients = _clients(node, sockets / "clients")
        supernode = _supernode(node, link, sockets / "clients")
        shown: dict[str, Any] = {}
        while not stop.wait(_LOOK):
            if (state := _state(link, clients, supernode)) != shown:
                _tell_starts(shown, state, tell)
                with suppress(UserError):  # a full disk: what runs goes on
                    write_json(node / STATE, state)
                shown = state
            if clients.over:
                raise UserError(f"the clients of {node} cannot be served: {last_line(clients.log)}")
    finally:
        for one in (supernode, clients):
            if one is not None:
                one.end()
        (node / STATE).unlink(missing_ok=True)


def _clients(node: Path, socket: Path) -> Kept:
    words = ("-m", "coterie.core.flower.resident", "--node", str(node), "--socket", str(socket))
    log = node / "log" / "clients.log"
    return Kept(lambda: [sys.executable, *words], log, once=(_BAD_INPUT,))


def _supernode(node: Path, link: SuperLink, socket: Path) -> Kept:
    """The SuperNode. Within a minute of a kill Flower refuses it, so that it is tried again."""

    def command() -> list[str]:
        return [
            program("flower-supernode"),
            *("--superlink", link.address, "--root-certificates", str(link.authority)),
            *("--auth-supernode-private-key", str(link.key)),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f'{SOCKET}="{socket}"'),
        ]

    first = write_programs(socket.parent)
    return Kept(command, node / "log" / "supernode.log", environment(node / "flower", first))


def _tell_starts(
    before: Mapping[str, Any], now: Mapping[str, Any], tell: Callable[[str], object]
) -> None:
    for name in ("clients", "supernode"):
        if before and now[name]["starts"] > before[name]["starts"]:
            tell(f"{name} ended, and is started again: {now[name]['said']}")


def _state(link: SuperLink, clients: Kept, supernode: Kept) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "superlink": link.address,
        "clients": _of(clients),
        "supernode": _of(supernode),
    }


def _of(kept: Kept) -> dict[str, Any]:
    said = "" if kept.pid and kept.starts == 1 else last_line(kept.log)
    return {"pid": kept.pid, "starts": kept.starts, "said": said}
