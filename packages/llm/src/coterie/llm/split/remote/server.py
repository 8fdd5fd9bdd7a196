"""Serve the middle to clients and a coordinator in other processes, who are known first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.wire.codec import Header, ProtocolError, decode, encode
from coterie.llm.split.channel import Diverged
from coterie.llm.split.kept_parts import KeptParts
from coterie.llm.split.middle import Middle
from coterie.llm.split.remote import messages
from coterie.llm.split.remote.link import MAX_BYTES, Tls, grpc, is_loopback, options
from coterie.llm.split.remote.messages import CLIENT, SERVICE, SESSION, TOKEN
from coterie.llm.split.remote.tokens import admin_token, client_token, same
from coterie.llm.split.sessions import UNKNOWN

CODES = {
    PermissionError: grpc.StatusCode.UNAUTHENTICATED,
    UserError: grpc.StatusCode.FAILED_PRECONDITION,
    Diverged: grpc.StatusCode.OUT_OF_RANGE,
    ProtocolError: grpc.StatusCode.INVALID_ARGUMENT,
}
"""Refusals as status codes."""

Metadata = dict[str, str]


def metadata_of(given: Iterable[tuple[str, Any]] | None) -> Metadata:
    """Read what a call says beside its message; what it does not say is empty."""
    said = {key: str(value) for key, value in given or ()}
    return {TOKEN: "", SESSION: "", CLIENT: ""} | said


class Gate(grpc.ServerInterceptor):
    """Refuse calls of strangers without receiving what they send.

    The transport holds back the bytes of a message until somebody reads it, beyond its window (64
    KiB at first, more where the line is fast: 7 to 24 MiB of 64 were seen within one machine), so
    a stranger's large message takes neither much memory nor the server's time.

    Args:
        check: is given the method and its metadata, and raises one of the keys of `CODES`.
    """

    def __init__(self, check: Callable[[str, Metadata], None]) -> None:
        self._check = check

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Give the handler of a call, or one that refuses it unread."""
        try:
            method = details.method.removeprefix(f"/{SERVICE}/")
            self._check(method, metadata_of(details.invocation_metadata))
        except (PermissionError, UserError) as error:
            code, why = CODES[type(error)], str(error)
            return grpc.stream_unary_rpc_method_handler(
                lambda requests, context: context.abort(code, why)
            )
        return continuation(details)


_LOG = logging.getLogger(__name__)
_WAITING = 64  # calls at once; more are refused, not queued
_ADMIN = {kind.__name__ for kind in (messages.Use, messages.Gram, messages.Mix)}


class MiddleServer:
    """A gRPC server of one middle on one device; calls run one after another.

    Args:
        middle: is used by this server alone.
        folder: where all clients' parts of it are kept, round by round.
        model: fingerprint that clients must have.
        secret: from which all tokens follow.
        address: ``host:port`` to listen at; port 0 takes a free one, which the attribute has.
        tls: certificate and key of the server; ``root`` demands certificates of the clients. None
            sends in the clear, which is allowed on this machine only.
        max_bytes: of a message.

    Raises:
        UserError: the address cannot be listened at, or TLS is missing or broken.
    """

    def __init__(
        self,
        middle: Middle,
        model: str,
        secret: str,
        folder: Path,
        address: str = "127.0.0.1:0",
        *,
        tls: Tls | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._middle, self._model, self._secret = middle, model, secret
        self._max_bytes, self._kept = max_bytes, KeptParts(middle, folder)
        self._device = threading.Lock()
        self._stopped = threading.Event()
        # One thread, as one call computes at a time: each would have memory of its own, to be
        # fetched anew. It multiplies matrices with all cores until told, and rounds otherwise.
        pool = ThreadPoolExecutor(
            1, "middle", initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
        )
        self._server = grpc.server(
            pool,
            interceptors=(Gate(self._check_caller),),
            options=options(max_bytes),
            maximum_concurrent_rpcs=_WAITING,
        )
        own = grpc.method_handlers_generic_handler(messages.SERVICE, self._handlers())
        self._server.add_generic_rpc_handlers((own,))
        self.address = self._listen(address, tls)

    def start(self) -> None:
        """Answer calls, and drop what has waited too long, in threads of its own."""
        self._server.start()
        threading.Thread(target=self._expire, name="expiry", daemon=True).start()

    def wait(self) -> None:
        """Block until the server is stopped."""
        self._server.wait_for_termination()

    def stop(self, grace: float = 1.0) -> None:
        """Refuse new calls, and end those that run after ``grace`` seconds."""
        self._stopped.set()
        self._server.stop(grace).wait()

    def _expire(self) -> None:
        """Free the graphs of clients who are gone, though nobody else calls."""
        while not self._stopped.wait(self._middle.ttl / 10):
            with self._device:
                self._middle.expire()

    def _handlers(self) -> dict[str, Any]:
        middle, session = self._middle, messages.SESSION
        answers: dict[type, Callable[[Any, Metadata], Any]] = {
            messages.Open: self._open,
            messages.Forward: lambda asked, who: messages.Activation(
                *middle.forward(who[session], asked.hidden, asked.context)
            ),
            messages.Backward: lambda asked, who: messages.Gradient(
                middle.backward(who[session], asked.call, asked.gradient)
            ),
            messages.Step: lambda asked, who: middle.step(who[session]),
            messages.Close: lambda asked, who: middle.close(who[session], keep=asked.keep),
            messages.Use: self._use,
            messages.Gram: lambda asked, who: messages.Products(
                middle.gram(asked.ids, asked.changes)
            ),
            messages.Mix: lambda asked, who: self._kept.mix(
                asked.how, asked.number, floor=asked.floor, best=asked.best
            ),
        }
        return {
            kind.__name__: grpc.unary_unary_rpc_method_handler(self._call(kind, answer))
            for kind, answer in answers.items()
        }

    def _call(
        self, kind: type, answer: Callable[[Any, Metadata], Any]
    ) -> Callable[[bytes, Any], bytes]:
        """What gRPC calls: bytes in, bytes out, refusals as status codes."""

        def behave(request: bytes, context: Any) -> bytes:
            with _refusing(kind.__name__, context) as metadata:
                decoded: tuple[Any, Header] = decode(request, kind, max_bytes=self._max_bytes)
                with self._device:
                    reply = answer(decoded[0], metadata)
                reply = messages.Done() if reply is None else reply
                return encode(reply, Header(kind.__name__, ()))

        return behave

    def _open(self, message: messages.Open, metadata: Metadata) -> messages.Opened:
        self._check_model(message.model)
        key = None
        if message.key is not None:
            if not -(1 << 63) <= message.key < 1 << 63:
                raise ProtocolError("key is no int64")
            key = Key(torch.tensor(message.key, dtype=torch.int64))
        client = int(metadata[messages.CLIENT])  # whose token it is
        opened = self._middle.open(client, training=message.training, key=key)
        return messages.Opened(opened.session, opened.part)

    def _use(self, message: messages.Use, metadata: Metadata) -> None:
        self._check_model(message.model)
        self._kept.use(
            message.run,
            message.number,
            message.clients,
            optimizer=message.optimizer,
            anew=message.anew,
        )

    def _check_caller(self, method: str, metadata: Metadata) -> None:
        """Refuse a caller by what it says beside its message, before that is read.

        Raises:
            PermissionError: the token is not the one for this call.
            UserError: the session is unknown.
        """
        if method in _ADMIN:
            if not same(metadata[messages.TOKEN], admin_token(self._secret)):
                raise PermissionError("the token is not that of the coordinator")
        elif method == messages.Open.__name__:
            name = metadata[messages.CLIENT][:19]
            number = int(name) if name.isascii() and name.isdecimal() else -1
            if not same(metadata[messages.TOKEN], client_token(self._secret, number)):
                raise PermissionError(f"the token is not that of client {number}")
        elif not self._middle.knows(metadata[messages.SESSION]):
            raise UserError(UNKNOWN)

    def _check_model(self, model: str) -> None:
        if model != self._model:
            raise UserError(
                f"the client's model or settings ({model[:16]}) are not the server's "
                f"({self._model}): start both with the same configuration"
            )

    def _listen(self, address: str, tls: Tls | None) -> str:
        host = address.rpartition(":")[0]
        try:
            if tls is None:
                if not is_loopback(host):
                    raise UserError(
                        f"{address} can be reached from elsewhere: give --cert and --key, or "
                        "listen at 127.0.0.1"
                    )
                port = self._server.add_insecure_port(address)
            else:
                root, certificate, key = tls.read()
                credentials = grpc.ssl_server_credentials(
                    [(key, certificate)], root, require_client_auth=root is not None
                )
                port = self._server.add_secure_port(address, credentials)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"cannot listen at {address}: the port is taken, or the certificate and the key do "
                f"not fit ({reason})"
            ) from None
        return f"{host}:{port}"


@contextmanager
def _refusing(name: str, context: Any) -> Iterator[Metadata]:
    """Give the metadata of a call; refusals inside the block become its status."""
    try:
        yield metadata_of(context.invocation_metadata())
    except grpc.RpcError:  # the other side has gone
        raise
    except (PermissionError, UserError, ProtocolError) as error:
        context.abort(CODES[type(error)], str(error))
    except Exception:
        _LOG.exception("%s failed", name)
        context.abort(grpc.StatusCode.INTERNAL, "it failed; its own output says why")
