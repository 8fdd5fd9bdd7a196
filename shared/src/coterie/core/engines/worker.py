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
from pathlib import Path
from typing import BinaryIO

import torch

from coterie.core.engines.envelope import ReplyHeader, RequestHeader, digest
from coterie.core.engines.host import ClientHost
from coterie.core.errors import UserError
from coterie.core.wire.codec import MAX_BYTES, ProtocolError, encode, peek

_LENGTH = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve requests until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m coterie.core.engines.worker")
    parser.add_argument("--folder", type=Path, required=True, help="the clients' own folder")
    folder: Path = parser.parse_args(arguments).folder
    try:
        host: ClientHost | None = ClientHost(folder)
        torch.set_num_threads(host.folder.threads if host else 1)
        while (request := read_frame(sys.stdin.buffer)) is not None:
            # After a failure from the state that is kept: memory may hold half a step.
            host = host or ClientHost(folder)
            reply, failed = answered(host, request)
            host = None if failed else host
            write_frame(sys.stdout.buffer, reply)
    except (UserError, ProtocolError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def answered(host: ClientHost, request: bytes) -> tuple[bytes, bool]:
    """A reply, and whether the step has failed."""
    try:
        return host.answer(request), False
    except ProtocolError as error:
        return _refusal(request, str(error)), False
    except Exception:
        traceback.print_exc()
        return _refusal(request, "the step failed on the client's side"), True


def _refusal(request: bytes, why: str) -> bytes:
    """A reply in which nobody's answer counts."""
    try:
        header: RequestHeader = peek(request, header=RequestHeader)
        asked = header.clients
    except ProtocolError:
        asked = ()
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
