"""What a server takes and what it refuses: sizes, rates, who may ask. Neither torch nor FastAPI."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import UserError

TOKEN = "COTERIE_TOKEN"
"""Environment variable that holds the token."""
_SHORTEST = 16  # characters of a token


@dataclass(frozen=True)
class Limits:
    """What a server takes at most.

    Attributes:
        body: bytes of a request's body.
        users: users of a batch.
        history: items of someone new.
        top: items of a list.
        in_flight: requests at a time; more are told to come again.
        rate: requests a second of one address, on average.
        burst: requests of one address at once.
        addresses: addresses whose rate is remembered.
        timeout: seconds that a request may take, its body included.
        connections: open connections.
    """

    body: int = 1 << 18
    users: int = 100
    history: int = 5_000
    top: int = 1_000
    in_flight: int = 32
    rate: float = 100.0
    burst: int = 200
    addresses: int = 10_000
    timeout: float = 10.0
    connections: int = 256


class Rates:
    """A token bucket for each address, of the addresses seen last.

    Args:
        limits: ``rate``, ``burst`` and ``addresses`` count.
        clock: seconds.

    Example:
        >>> rates = Rates(Limits(rate=1.0, burst=2), clock=lambda: 0.0)
        >>> [rates.allow("a"), rates.allow("a"), rates.allow("a"), rates.allow("b")]
        [True, True, False, True]
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests, when

    def __len__(self) -> int:
        return len(self._left)

    def allow(self, address: str) -> bool:
        """Count a request; say whether it is within the rate."""
        now, most = self._clock(), float(self._limits.burst)
        left, then = self._left.pop(address, (most, now))
        left = min(most, left + (now - then) * self._limits.rate)
        allowed = left >= 1.0
        self._left[address] = (left - allowed, now)
        if len(self._left) > self._limits.addresses:
            self._left.popitem(last=False)
        return allowed


class Token:
    """A secret that whoever asks must know; kept as a digest.

    Args:
        secret: the words after ``Bearer``.

    Example:
        >>> token = Token("0123456789abcdef")
        >>> token.opens(b"Bearer 0123456789abcdef"), token.opens(b"Bearer 0"), token.opens(b"")
        (True, False, False)
    """

    def __init__(self, secret: str) -> None:
        self._digest = hashlib.sha256(secret.encode()).digest()

    def opens(self, authorization: bytes) -> bool:
        """Whether a header ``Authorization`` has it; takes as long for any wrong one."""
        scheme, _, given = authorization.partition(b" ")
        same = hmac.compare_digest(hashlib.sha256(given.strip()).digest(), self._digest)
        return same and scheme.lower() == b"bearer"


def read_token(file: Path | None) -> Token | None:
    """Read the token from a file, or else from the environment; None where there is none.

    Raises:
        UserError: the file cannot be read, or the token is too short or has blanks in it.
    """
    where = f"the token file {file}" if file is not None else f"${TOKEN}"
    if file is not None:
        try:
            text = file.read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not plain ASCII"
            raise UserError(f"{where} cannot be read ({reason.lower()})") from None
    elif (given := os.environ.get(TOKEN)) is not None:
        text = given
    else:
        return None
    secret = text.strip()
    if len(secret) < _SHORTEST or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise UserError(
            f"{where} has no token of at least {_SHORTEST} characters without blanks: make one "
            "by openssl rand -hex 32"
        )
    return Token(secret)


def check_address(host: str, token: Token | None) -> None:
    """Refuse to serve without a token whoever can reach this machine.

    Raises:
        UserError: there is none, and the address is not this machine's own.
    """
    if token is None and not is_loopback(host):
        raise UserError(
            f"without a token only this machine itself is served, not {host}: give --token-file "
            f"FILE or ${TOKEN}, or leave out --host"
        )


def is_loopback(host: str) -> bool:
    """Whether all addresses of a name are this machine's own.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("")
        (True, True, False, False)
    """
    if not host:
        return False
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(one.split("%")[0]).is_loopback for one in found)


def bound_socket(host: str, port: int) -> socket.socket:
    """Take an address, without listening to it yet.

    Raises:
        UserError: it is taken, or is none of this machine's.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot serve at {host} port {port} ({error}): give another") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except (OSError, OverflowError) as error:
        made.close()
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UserError(
            f"cannot serve at {host} port {port} ({reason}): choose another --port or --host"
        ) from None
    return made
