"""What all clients of a federation know and no server does; sums by masks that cancel."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.files import replacing, writing
from coterie.core.tensors.keys import Key

SECRET_FILE = "clients.secret"
"""In the folder of every client that runs apart: 64 hexadecimal digits, the same for all."""
_BYTES = 32


class CommonSecret:
    """32 bytes that the clients of a federation share, drawn from the operating system.

    Whoever knows a run's settings must not know them, so they never follow from the seed, and no
    number of a run may depend on them: they make wrappings, tokens, and masks that cancel. In a
    simulation they are in the clients' part of the checkpoint, elsewhere in the clients' folders.

    Example:
        >>> mine = CommonSecret()
        >>> CommonSecret(mine.derive("tokens")).derive("a") == CommonSecret().derive("a")
        False
    """

    def __init__(self, value: bytes | None = None) -> None:
        self._value = secrets.token_bytes(_BYTES) if value is None else value

    def derive(self, *name: str | int) -> bytes:
        """Derive 32 bytes for one purpose; they tell nothing about those for another."""
        return hmac.digest(self._value, repr(name).encode(), "sha256")

    def key(self, *name: str | int) -> Key:
        """Derive a key to draw from."""
        state = int.from_bytes(self.derive(*name)[:8], "little", signed=True)
        return Key(torch.tensor(state, dtype=torch.int64))

    def to_plain(self) -> Tensor:
        """Give it for the clients' own part of a checkpoint, ``(32,)`` uint8."""
        return torch.tensor(list(self._value), dtype=torch.uint8)

    def load_plain(self, plain: Tensor) -> None:
        """Go on with the one that `to_plain` gave."""
        self._value = bytes(plain.tolist())

    def write(self, folder: Path) -> None:
        """Write it into a client's folder, for the owner only.

        Raises:
            UserError: the folder cannot be written.
        """
        path = folder / SECRET_FILE
        with writing(path), replacing(path) as temporary:
            opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(opened, "w") as file:
                file.write(self._value.hex() + "\n")

    @staticmethod
    def read(folder: Path) -> CommonSecret:
        """Read it from a client's folder.

        Raises:
            UserError: it is missing, or no 64 hexadecimal digits.
        """
        path = folder / SECRET_FILE
        try:
            value = bytes.fromhex(path.read_text())
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} must hold the secret that all clients share: {error}"
            ) from None
        if len(value) != _BYTES:
            raise UserError(f"{path} must hold {2 * _BYTES} hexadecimal digits, drawn at random")
        return CommonSecret(value)


# Secure sum by masks that cancel: the server learns the sum of integer tables, no summand.
#
# Each client adds to its table, modulo 2^64, masks that it shares with a few other clients of the
# round, who subtract them (Bonawitz et al., CCS 2017; with few partners Bell et al., CCS 2020).
# This simulates the protocol without drop-outs: masks come from one secret of all clients in place
# of pairwise agreed ones, so one client that gives it away opens all uploads, and from the
# generator of the simulation, which is not a cryptographic one.

FRACTION_BITS = 20


def to_fixed(values: Tensor) -> Tensor:
    """Round to multiples of 2^-20, as int64.

    Example:
        >>> to_fixed(torch.tensor([1.0, -0.5])).tolist()
        [1048576, -524288]
    """
    return (values.double() * 2.0**FRACTION_BITS).round().long()


def from_fixed(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Undo `to_fixed`, for a sum as well."""
    return (values.double() * 2.0**-FRACTION_BITS).to(dtype)


def pairwise_masks(
    secret: Key, roster: Tensor, ids: Tensor, shape: tuple[int, ...], partners: int
) -> Tensor:
    """Give the masks of some clients; those of the whole roster sum to 0 modulo 2^64.

    The roster is a ring. A client shares a mask with each of the ``partners / 2`` clients before
    it, which it subtracts, and after it, which it adds.

    Args:
        secret: of the clients, different in every round.
        roster: ``(R,)`` int64, the ids of all clients of the round, distinct.
        ids: ``(C,)`` int64, those to make masks for.
        shape: of a table.
        partners: even, at least 2; limited by the number of other clients.

    Returns:
        ``(C, *shape)`` int64.

    Raises:
        UserError: for a single client, whom no sum hides.
    """
    size = roster.numel()
    if size < 2:
        raise UserError(
            "a masked sum over a single client hides nothing: let more clients take part, or send "
            "without masks"
        )
    order = torch.argsort(roster)
    place = order[torch.searchsorted(roster[order], ids)]
    total = torch.zeros(ids.numel(), *shape, dtype=torch.int64)
    for step in range(1, min(partners // 2, size - 1) + 1):
        pair = secret.fold("pair", step)
        total += _bits(pair.fold(roster[place]), shape)
        total -= _bits(pair.fold(roster[(place - step) % size]), shape)
    return total


def _bits(key: Key, shape: tuple[int, ...]) -> Tensor:
    """64 random bits for each entry of a table of each client, ``(C, *shape)`` int64."""
    count = torch.arange(torch.Size(shape).numel())
    return Key(key.state[:, None]).bits(count).reshape(-1, *shape)
