"""A connection to the server of the middle: TLS, deadlines, and errors as one line."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from coterie.core.errors import UserError
from coterie.core.wire.codec import Header, ProtocolError, decode, encode
from coterie.llm.split.channel import Diverged
from coterie.llm.split.remote.messages import CLIENT, SERVICE, SESSION, TOKEN

# Handshake failures would be logged by the C library, beside the one line of ours.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc

MAX_BYTES = 256 << 20

M = TypeVar("M")


@dataclass(frozen=True)
class Tls:
    """Files in PEM format.

    Attributes:
        root: certificates that the other side's must follow from; for the server None accepts
            clients without a certificate.
        certificate: of this side, with its chain; a client may have none.
        key: of the certificate.
    """

    root: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Read root, certificate and key.

        Raises:
            UserError: a file is missing, or only one of certificate and key is given.
        """
        if (self.certificate is None) != (self.key is None):
            raise UserError("a certificate and its key belong together: give both or none")
        return _read(self.root), _read(self.certificate), _read(self.key)


def options(max_bytes: int) -> list[tuple[str, int]]:
    """Options of both sides' transport."""
    return [
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_send_message_length", max_bytes),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # A machine that vanishes sends no goodbye.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.so_reuseport", 0),
        # Else a new link would wait out what an older one met at the address before.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host's address.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    name = host.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


class Link:
    """One side's connection to the server.

    Args:
        address: ``host:port``.
        tls: None sends in the clear, which is allowed to this machine only.
        deadline: seconds in which a call must be answered.

    Raises:
        UserError: the address is none, or is elsewhere and there is no TLS.
    """

    def __init__(self, address: str, *, tls: Tls | None = None, deadline: float = 120.0) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise UserError(f"'{address}' is no address of a split server: write host:port")
        self._address, self._deadline = address, deadline
        if tls is None:
            if not is_loopback(host):
                raise UserError(f"{address} is another machine: give the server's certificate")
            self._channel = grpc.insecure_channel(address, options(MAX_BYTES))
        else:
            root, certificate, key = tls.read()
            credentials = grpc.ssl_channel_credentials(root, key, certificate)
            self._channel = grpc.secure_channel(address, credentials, options(MAX_BYTES))
        self._methods: dict[str, Any] = {}

    def connect(self, patience: float = 5.0) -> None:
        """Wait until the server is there, so many seconds at most.

        Raises:
            UserError: it is not.
        """
        try:
            grpc.channel_ready_future(self._channel).result(min(patience, self._deadline))
        except grpc.FutureTimeoutError:
            raise UserError(
                f"no split server answers at {self._address}, or it does not accept this side's "
                "certificate: start `coterie llm serve` there first"
            ) from None

    def call(
        self,
        message: Any,
        answer: type[M],
        *,
        token: str = "",
        session: str = "",
        client: int | None = None,
        count: Callable[[int, int], None] | None = None,
    ) -> M:
        """Send one of `coterie.llm.split.remote.messages`, wait for one of the class ``answer``.

        Args:
            message: to send.
            answer: its class.
            token: of who speaks.
            session: in which.
            client: whose token it is; None for the coordinator.
            count: is told the bytes of message and answer.

        Raises:
            UserError: the server refused, cannot be reached, has gone or does not answer in time.
            Diverged: what was trained there is not finite.
        """
        name = type(message).__name__
        method = self._method(name)
        known = {TOKEN: token, SESSION: session, CLIENT: "" if client is None else str(client)}
        metadata = tuple((key, value) for key, value in known.items() if value)
        with self._explained():
            request = encode(message, Header(name, ()))
            reply = method(request, timeout=self._deadline, metadata=metadata)
            if count is not None:
                count(len(request), len(reply))
            return decode(reply, answer, max_bytes=MAX_BYTES)[0]

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _method(self, name: str) -> Any:
        if name not in self._methods:
            self._methods[name] = self._channel.unary_unary(f"/{SERVICE}/{name}")
        return self._methods[name]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise self._failure(error) from None
        except ProtocolError as error:
            raise UserError(
                f"the split server at {self._address} answered nonsense: {error}"
            ) from None

    def _failure(self, error: Any) -> UserError:
        code, where = error.code(), f"the split server at {self._address}"
        details = " ".join((error.details() or "").split())[:300]
        if code == grpc.StatusCode.UNAVAILABLE:
            if any(word in details.lower() for word in ("ssl", "tls", "certificate", "handshake")):
                return UserError(
                    f"{where} and this side do not accept each other's certificate: "
                    f"check --cert, --client-ca and the certificates here ({details})"
                )
            return UserError(
                f"{where} cannot be reached, or has gone: start it (again), "
                f"then run again with --resume ({details})"
            )
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return UserError(f"{where} has not answered in {self._deadline:g} s")
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return UserError(
                f"{where} is busy, or a message is too large ({details}): use smaller batches, or "
                f"raise --max-mib of a server that takes less than {MAX_BYTES >> 20} MiB"
            )
        if code == grpc.StatusCode.OUT_OF_RANGE:
            return Diverged(f"{where}: {details}")
        return UserError(f"{where} refused: {details or code.name.lower()}")


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {(error.strerror or '').lower()}") from error
