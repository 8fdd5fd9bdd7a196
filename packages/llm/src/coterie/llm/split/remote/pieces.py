"""Bytes of any length as a stream of messages that each fit."""

from __future__ import annotations

from collections.abc import Iterator

PIECE = 1 << 19
"""Most bytes of a message of a stream; a server takes at least twice as many."""


def pieces(data: bytes) -> Iterator[bytes]:
    """Cut bytes, which join to the whole again; nothing is one empty piece.

    Example:
        >>> [len(piece) for piece in pieces(bytes(PIECE + 3))]
        [524288, 3]
    """
    for start in range(0, max(len(data), 1), PIECE):
        yield data[start : start + PIECE]
