"""A process for the clients of one folder.

    python -m coterie.core.engines.worker --folder CLIENT

It reads parcels from standard input and writes replies to standard output, each as eight bytes of
length (little endian) and the bytes; an empty frame says that it is ready. It imports neither
lightning nor a paper's server half. What goes wrong is told on standard error, which may name paths
and stays on the clients' machine; the reply then only says that there is none.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from coterie.core.engines.envelope import Parcel, read_frame, refusal, write_frame
from coterie.core.engines.folder import ClientFolder, serving
from coterie.core.engines.host import ClientHost
from coterie.core.errors import UserError
from coterie.core.kernels import switch
from coterie.core.protocol.client import Client
from coterie.core.protocol.edition import Misfit
from coterie.core.wire.codec import ProtocolError

FAILED = "the step failed on the client's side"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve parcels until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m coterie.core.engines.worker")
    parser.add_argument("--folder", type=Path, required=True, help="the clients' own folder")
    folder: Path = parser.parse_args(arguments).folder
    try:
        Service(folder).serve(sys.stdin.buffer, sys.stdout.buffer)
    except (UserError, ProtocolError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


class Service:
    """Answers parcels whatever they are; arguments as of `ClientHost`."""

    def __init__(self, folder: Path, client: Client[Any, Any] | None = None) -> None:
        self._folder, self._client = folder, client
        self._host: ClientHost | None = None

    def serve(self, requests: BinaryIO, replies: BinaryIO) -> None:
        """Answer frames until there are no more.

        Raises:
            UserError: the folder is not complete, or another process serves it.
            ProtocolError: what comes is no frame.
        """
        with serving(self._folder):
            folder = ClientFolder(self._folder)
            torch.set_num_threads(folder.threads)
            switch.allow(folder.card.settings.get("engine.kernels") != "off")
            with suppress(Misfit):  # it is told to who asks
                self.host()
            write_frame(replies, b"")
            while (request := read_frame(requests)) is not None:
                write_frame(replies, self.answer(request))

    def host(self) -> ClientHost:
        """The clients as they are now.

        Raises:
            UserError: the folder is not complete, or was written by other versions than these.
        """
        self._host = self._host or ClientHost(self._folder, self._client)
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
    sys.exit(main())
