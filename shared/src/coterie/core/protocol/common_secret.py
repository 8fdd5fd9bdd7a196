"""What all clients of a federation know and no server does."""

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
