"""A process for the clients of one folder.

    python -m coterie.core.engines.worker --folder CLIENT

It reads requests from standard input and writes replies to standard output, each as eight bytes of
length (little endian) and the bytes. It imports neither lightning nor a paper's server half. What
goes wrong is told on standard error, which may name paths and stays on the clients' machine; the
reply then only says that there is none.
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

from coterie.core.engines.envelope import ReplyHeader, RequestHeader, digest
from coterie.core.engines.host import ClientHost
from coterie.core.errors import UserError
from coterie.core.kernels import switch
from coterie.core.protocol.client import Client
from coterie.core.wire.codec import MAX_BYTES, ProtocolError, encode, peek

_LENGTH = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve requests until standard input ends."""
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
    """Answers requests whatever they are; arguments as of `ClientHost`."""

    def __init__(self, folder: Path, client: Client[Any, Any] | None = None) -> None:
        self._folder, self._client = folder, client
        self._host: ClientHost | None = None

    def serve(self, requests: BinaryIO, replies: BinaryIO) -> None:
        """Answer frames until there are no more.

        Raises:
            UserError: the folder is not complete.
            ProtocolError: what comes is no frame.
        """
        folder = self.host().folder
        torch.set_num_threads(folder.threads)
        switch.allow(folder.card.settings.get("engine.kernels") != "off")
        while (request := read_frame(requests)) is not None:
            write_frame(replies, self.answer(request))

    def host(self) -> ClientHost:
        """The clients as they are now.

        Raises:
            UserError: the folder is not complete.
        """
        self._host = self._host or ClientHost(self._folder, self._client)
        return self._host

    def answer(self, request: bytes) -> bytes:
        """Answer a request; one that is refused, or fails, has a reply in which nobody counts.

        Raises:
            UserError: the folder is not complete.
        """
        try:
            return self.host().answer(request)
        except ProtocolError as error:
            return _refusal(request, str(error))
        except UserError:
            raise
        except Exception:
            traceback.print_exc()
            self._host = None  # memory may hold half a step: go on from what is kept
            return _refusal(request, "the step failed on the client's side")


def _refusal(request: bytes, why: str) -> bytes:
    """A reply in which nobody's answer counts."""
    asked: tuple[int, ...] = ()
    with suppress(ProtocolError):
        asked = peek(request, header=RequestHeader).clients
    return encode(None, ReplyHeader(digest(request), (), {str(one): why for one in asked}))


def read_frame(stream: BinaryIO) -> bytes | None:
    """Read the next message; None at the end.

    Raises:
        ProtocolError: it is cut short, or longer than any message may be.
    """
    head = stream.read(_LENGTH)
    if not head:
        return None
    length = int.from_bytes(head, "little")
    if len(head) < _LENGTH or length > MAX_BYTES:
        raise ProtocolError(f"a frame of {length} bytes is cut short or too long")
    content = stream.read(length)
    if len(content) < length:
        raise ProtocolError(f"a frame of {length} bytes ends after {len(content)}")
    return content


def write_frame(stream: BinaryIO, content: bytes) -> None:
    """Write a message."""
    stream.write(len(content).to_bytes(_LENGTH, "little"))
    stream.write(content)
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
