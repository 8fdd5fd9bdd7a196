"""The process that has the clients of a node: it answers parcels on a socket, and notes each.

    python -m coterie.core.flower.resident --node NODE --socket PATH

It stays while Flower starts a process for every message. The socket is for its owner alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from coterie.core.engines.envelope import Parcel, ReplyHeader
from coterie.core.engines.worker import Service, ready
from coterie.core.errors import UserError
from coterie.core.flower.node_folder import client_folders
from coterie.core.flower.requests import Asked, note, now
from coterie.core.wire.codec import MAX_BYTES, ProtocolError, peek

REFUSED, STOPPED = 2, 3
"""Exit status: the owner must mend something first; or it may do again, on a disk with room say."""
_SLOW = 60.0  # seconds that one on this machine may take to send what it has begun to


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer parcels until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m coterie.core.flower.resident")
    parser.add_argument("--node", type=Path, required=True, help="folder of the node")
    parser.add_argument("--socket", type=Path, required=True, help="where it is asked")
    given, begun = parser.parse_args(arguments), False
    try:
        services = {path.name: Service(path) for path in client_folders(given.node)}
        with ready(services.values()):
            begun = True
            listen(given.node, services, given.socket)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return STOPPED if begun else REFUSED
    return 0


def listen(node: Path, services: Mapping[str, Service], socket: Path) -> None:
    """Answer parcels on a socket.

    Raises:
        UserError: private state, or what was asked, cannot be written.
    """
    socket.unlink(missing_ok=True)
    with Listener(str(socket), "AF_UNIX") as listener:
        while True:
            with suppress(OSError, EOFError), listener.accept() as asking:
                _answer_one(node, services, asking)


def _answer_one(node: Path, services: Mapping[str, Service], asking: Connection) -> None:
    if not asking.poll(_SLOW):
        return
    name = asking.recv_bytes(4096).decode(errors="replace")
    if asking.poll(_SLOW):
        asking.send_bytes(answered(node, services, name, asking.recv_bytes(MAX_BYTES)))


def answered(node: Path, services: Mapping[str, Service], name: str, parcel: bytes) -> bytes:
    """Answer a parcel for a folder, and note it before the reply is given.

    Raises:
        UserError: a folder is not complete, or nothing can be noted.
    """
    began, when = time.perf_counter(), now()
    service = services.get(name)
    if service is None:
        note(node, Asked(when, name[:100], down=len(parcel), why="this node has no such folder"))
        return b""
    reply = service.answer(parcel)
    seconds = round(time.perf_counter() - began, 3)
    note(node, _described(when, name, parcel, reply, seconds))
    return reply


def _described(when: str, folder: str, parcel: bytes, reply: bytes, seconds: float) -> Asked:
    said = peek(reply, header=ReplyHeader)
    why = said.why or "; ".join(dict.fromkeys(said.refused.values()))
    sizes = {"down": len(parcel), "up": len(reply), "seconds": seconds}
    try:
        found = Parcel.read(parcel)
        *missed, asked = found.requests()
    except ProtocolError:
        return Asked(when, folder, why=why, **sizes)  # type: ignore[arg-type]
    header = found.header
    return Asked(
        when,
        folder,
        parcel=found.name,
        run=header.run,
        epoch=header.epoch,
        turn=header.turn,
        attempt=header.attempt,
        block=asked.block,
        round=asked.round,
        step=asked.step,
        missed=len(missed),
        answered=said.clients.numel(),
        why=why,
        **sizes,  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    os.umask(0o077)  # of this process alone: the socket is its owner's
    sys.exit(main())
