"""A client in a process of its own: a message's bytes in, a message's bytes out.

This is the seam for running clients elsewhere. The process gets a request, its own data and its own
private state; it imports neither lightning nor a server half, and it answers the same bytes as the
in-process engine at C = 1.

    python -m coterie.core.engines.process --folder CLIENT < request > reply

The folder is described in `coterie.core.engines.folder`. Only a complete reply goes to standard
output; what went wrong goes to standard error (it may name paths and stays on the client's
machine), with exit status 2 for a request or a folder that is not as it must be, 1 for the rest.
"""

from __future__ import annotations

import argparse
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.folder import ClientFolder
from coterie.core.errors import UserError, nearest
from coterie.core.federation.guard import guard
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Report, Reveals, leaves
from coterie.core.protocol.middleware import Middleware
from coterie.core.protocol.step import AnyStep
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.wire.codec import Header, ProtocolError, decode, encode, peek
from coterie.core.wire.schema import check_form


@dataclass(frozen=True)
class Refused(Report):
    """In place of an upload: the step's result was not finite, and nothing was changed."""

    why: str = leaves("which field was not finite", reveals=Reveals.NOTHING)


def answer(
    client: Client[Any, Any],
    request: bytes,
    private: bytes,
    data: Any,
    secret: Key,
    middleware: Sequence[Middleware] = (),
) -> tuple[bytes, bytes]:
    """Run one step for one client, as `coterie.core.federation.cohort.Cohort.ask` does at C = 1.

    Args:
        client: the client half.
        request: a message to one of its steps.
        private: what an earlier answer gave; empty for a newcomer, who is enrolled first.
        data: the client's own data: ``ids`` of shape ``(1,)``, or ``id`` in the list form.
        secret: the client's own key, a scalar. The simulation derives it from the run's seed
            (``root.fold(id)``); a real client draws it once and tells nobody.
        middleware: what an upload passes before it leaves.

    Returns:
        The bytes of the reply, and those of the private state to keep.

    Raises:
        ProtocolError: the request or the private state is not what the step takes.
        UserError: the data are not of one client.
    """
    ids, is_list = _own_id(client, data), client.form == "list"
    header = peek(request)
    step = bound_step(client, header.step)
    down: Any = decode(request, step.down)[0]
    mine, kept = _private(client, private, data, ids, secret)
    key = Key(secret.state.reshape(1)).fold(header.step, *header.nonce)
    own = Key(key.state[0]) if is_list else key
    up, new = getattr(client, header.step)(down, mine, data, own)
    reply = Header(header.step, header.nonce, int(ids))
    ok, reasons = guard(up, new, ids)
    if not bool(ok.all()):
        return encode(Refused(reasons[int(ids)]), reply), kept
    if up is not None and middleware:
        up = tree.as_stack(up) if is_list else up
        for layer in middleware:
            up = layer(up, key)
        up = tree.as_one(up) if is_list else up
    return encode(up, reply), kept if new is None else encode(new, reply)


def read_reply(
    reply: bytes, step: AnyStep[Any, Any], request: Header, *, like: Any = None
) -> tuple[Any, int]:
    """Read a client's reply on the server's side.

    Args:
        reply: what `answer` gave.
        step: the client's step.
        request: header of the request that is answered.
        like: an upload of the form that is expected.

    Returns:
        The upload of one client (or None), and the client's id.

    Raises:
        ProtocolError: the reply is malformed, of another form, late or refused by the client.
    """
    up: Any
    up, header = decode(reply, (step.up or types.NoneType) | Refused)
    if (header.step, header.nonce) != (request.step, request.nonce) or header.client is None:
        raise ProtocolError(f"reply to {header.step} {header.nonce} is not to this request")
    if isinstance(up, Refused):
        raise ProtocolError(f"client {header.client} refused: {up.why}")
    if up is not None:
        check_form(up, like, 1 if step.form == "stacked" else None)
    return up, header.client


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer one request from standard input for the client of a folder."""
    parser = argparse.ArgumentParser(prog="python -m coterie.core.engines.process")
    parser.add_argument("--folder", type=Path, required=True, help="the client's own folder")
    parser.add_argument("--client", help="module:factory, instead of that of client.json")
    options = parser.parse_args(arguments)
    try:
        reply = serve(options.folder, sys.stdin.buffer.read(), options.client)
    except (UserError, ProtocolError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.buffer.write(reply)
    sys.stdout.buffer.flush()
    return 0


def serve(path: Path, request: bytes, factory: str | None = None) -> bytes:
    """Answer a request for the client of a folder, and keep its private state there.

    The private state is kept before the reply is given. If the reply is then lost, the same request
    (the same step and nonce) starts again from the state before it and gives the same reply.

    Raises:
        UserError: the folder is not complete.
        ProtocolError: the request is not for this client half.
    """
    folder = ClientFolder(path)
    torch.set_num_threads(folder.threads)
    client, middleware = folder.build(factory)
    data, _ = decode(folder.data(), client.data_type())
    header = peek(request)
    before = folder.private((header.step, header.nonce))
    reply, after = answer(client, request, before, data, folder.secret, middleware)
    if after != before:
        folder.keep(before, after)
    return reply


def bound_step(client: Client[Any, Any], name: str) -> AnyStep[Any, Any]:
    """The step of a client half that a request asks for.

    Raises:
        ProtocolError: it has none of that name.
    """
    steps = client.steps()
    if name not in steps:
        raise ProtocolError(f"{type(client).__name__} has no step {name!r}: {nearest(name, steps)}")
    return steps[name]


def _own_id(client: Client[Any, Any], data: Any) -> Tensor:
    """The id of the one client whose data they are, ``(1,)``."""
    if client.form == "list":
        return torch.tensor([data.id])
    if data.ids.shape != (1,):
        raise UserError(f"a client's process needs data of one client, got {data.ids.numel()}")
    return data.ids


def _private(
    client: Client[Any, Any], private: bytes, data: Any, ids: Tensor, secret: Key
) -> tuple[Any, bytes]:
    """Private state from its bytes, or of a newcomer; and the bytes to keep if nothing changes."""
    key = Key(secret.state.reshape(1)).fold("enrol")
    if client.form == "list":
        key = Key(key.state[0])
    if private:
        mine, header = decode(private, client.private_type())
        if header.client != int(ids):
            raise ProtocolError(f"private state is of client {header.client}, not {int(ids)}")
        return mine, private
    mine = client.enrol(data, key)
    return mine, encode(mine, Header("enrol", (), int(ids)))


if __name__ == "__main__":
    sys.exit(main())
