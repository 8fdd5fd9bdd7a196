"""Bytes of a part, sent in pieces that fit into messages."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.wire.codec import ProtocolError


def cut(data: bytes, start: int, most: int) -> Tensor:
    """Give at most ``most`` bytes from ``start`` on as ``(n,)`` uint8.

    Example:
        >>> cut(b"abcde", 3, 4).tolist()
        [100, 101]
    """
    return torch.frombuffer(bytearray(data[start : start + most]), dtype=torch.uint8)


def joined(piece: Tensor) -> bytes:
    """Give the bytes of a piece.

    Raises:
        ProtocolError: it is none.
    """
    if piece.dtype != torch.uint8 or piece.dim() != 1:
        raise ProtocolError(f"a piece is {piece.dtype} {tuple(piece.shape)}, expected bytes")
    return piece.numpy().tobytes()


class Pieces:
    """Pieces that come one after another, of one client's part at a time.

    A piece begins where the one before it ended. One that begins at 0 replaces what has come, so
    that everything may be sent again; any other is refused, and nothing of it is kept.

    Args:
        max_bytes: of a part.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._client, self._data = -1, bytearray()

    def put(self, client: int, start: int, piece: Tensor, total: int) -> bytes | None:
        """Add a piece; give the part when all of it has come.

        Args:
            client: whose.
            start: place of the first byte.
            piece: ``(n,)`` uint8.
            total: bytes of the part.

        Raises:
            ProtocolError: it is no piece.
            UserError: the part is too long, or the piece is not what comes next.
        """
        data = joined(piece)
        if not 0 < total <= self._max_bytes or start + len(data) > total:
            raise UserError(
                f"a part of {total} bytes is more than the {self._max_bytes} that the model has: "
                "use the backbone and LoRA settings of the server"
            )
        come = len(self._data) if client == self._client else 0
        if start not in (0, come):
            raise UserError(
                f"client {client}'s part goes on at {come}, not at {start}: send it again from 0"
            )
        if start == 0:
            self._client, self._data = client, bytearray()
        self._data += data
        if len(self._data) < total:
            return None
        whole, self._client, self._data = bytes(self._data), -1, bytearray()
        return whole
