"""A process for the clients of some folders.

    python -m coterie.core.engines.worker --folder NORTH --folder SOUTH

It reads from standard input the name of a folder and a parcel, and writes the reply to standard
output, each as eight bytes of length (little endian) and the bytes; an empty frame says that it is
ready. It imports neither lightning nor a paper's server half. What goes wrong is told on standard
error, which may name paths and stays on the clients' machine; the reply then only says that there
is none. It ends with the process that has started it, whatever it is at.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from coterie.core.engines.envelope import Parcel, read_frame, refusal, write_frame
from coterie.core.engines.folder import ClientFolder
from coterie.core.engines.host import ClientHost
from coterie.core.engines.serving import serving
from coterie.core.errors import UserError
from coterie.core.federation.parent import end_with_parent
from coterie.core.kernels import switch
from coterie.core.protocol.client import Client
from coterie.core.protocol.edition import Misfit
from coterie.core.wire.codec import ProtocolError

FAILED = "the step failed on the client's side"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve parcels until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m coterie.core.engines.worker")
    parser.add_argument(
        "--folder", type=Path, required=True, action="append", help="of clients, their own"
    )
    folders: list[Path] = parser.parse_args(arguments).folder
    try:
        serve([Service(folder) for folder in folders], sys.stdin.buffer, sys.stdout.buffer)
    except (UserError, ProtocolError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


@contextmanager
def ready(services: Collection[Service]) -> Iterator[None]:
    """Have the clients of folders in memory, and nobody else serve them meanwhile.

    Raises:
        UserError: a folder is not complete, or another process serves it.
    """
    with ExitStack() as held:
        for one in services:
            held.enter_context(serving(one.folder))
        torch.set_num_threads(max(ClientFolder(one.folder).threads for one in services))
        for one in services:
            one.get_ready()
        yield


def serve(services: Sequence[Service], requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer frames until there are no more.

    Raises:
        UserError: a folder is not complete, or another process serves it.
        ProtocolError: what comes are no frames, or for no folder of these.
    """
    with ready(services):
        write_frame(replies, b"")
        by_name = {one.folder.name.encode(): one for one in services}
        while (name := read_frame(requests)) is not None:
            request = read_frame(requests)
            if name not in by_name or request is None:
                raise ProtocolError("a parcel for no folder of this process")
            write_frame(replies, by_name[name].answer(request))


class Service:
    """Answers parcels whatever they are; arguments as of `ClientHost`."""

    def __init__(self, folder: Path, client: Client[Any, Any] | None = None) -> None:
        self.folder, self._client = folder, client
        self._host: ClientHost | None = None

    def get_ready(self) -> None:
        """Make the client half, before the first parcel comes.

        Raises:
            UserError: the folder is not complete.
        """
        with suppress(Misfit):  # it is told to who asks
            switch.allow(self.host().folder.card.settings.get("engine.kernels") != "off")

    def host(self) -> ClientHost:
        """The clients as they are now.

        Raises:
            UserError: the folder is not complete, or was written by other versions than these.
        """
        self._host = self._host or ClientHost(self.folder, self._client)
        return self._host

    def answer(self, request: bytes) -> bytes:
        """Answer a parcel; one that is refused, or fails, has a reply in which nobody counts.

        Raises:
            UserError: the folder is not complete.
        """
        try:
            return self.host().answer(request)
        except (ProtocolError, Misfit) as error:
            return refusal(_read(request), str(error))
        except UserError:
            raise
        except Exception:
            traceback.print_exc()
            self._host = None  # memory may hold half a step: go on from what is kept
            return refusal(_read(request), FAILED)


def _read(request: bytes) -> Parcel | None:
    with suppress(ProtocolError):
        return Parcel.read(request)
    return None


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main())
