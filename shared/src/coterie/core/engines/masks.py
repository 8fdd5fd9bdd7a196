"""Sums behind masks: what the clients of several places add up to, and no part of it.

Each two places agree on a key (elliptic curves, by Flower's primitives) that the server carries and
cannot make. Of it both draw the same numbers (ChaCha20), which one adds to its sum and the other
subtracts, modulo 2^64; in the sum of all they are gone (Bonawitz et al., CCS 2017). The masks of an
ask depend on all that it is made of: who takes part with which clients, from which state, what was
sent. So nothing else is ever hidden behind the same masks.

Where a place does not answer, the sum stays closed, and the round is tried again with who is there.
Bonawitz's shares of secrets, by which the others would open it, take two requests more in every
round, of some seconds each on Flower's runtime; a place that fails takes one round more.

The server is believed to carry the keys as they are: one that gives each place a key of its own
making reads all. And two places of three that talk to one another know what the third has sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.files import write_bytes
from coterie.core.tensors import tree
from coterie.core.tensors.saved import digest
from coterie.core.wire.codec import ProtocolError

KEY = "mask.key"
LEAST = 3
"""Places: of two each would know the other's part."""
_BITS = 32  # behind the point
_MOST = 2.0 ** (63 - _BITS)
Roster = dict[str, list[str]]
"""Name of a place -> its public key, and a digest of who answers there from which state."""


def entry(public: str, clients: Tensor, since: str) -> list[str]:
    """What a roster says of a place.

    Args:
        public: its key.
        clients: ``(C,)`` who is asked there.
        since: the parcel that they go on from.
    """
    return [public, digest([clients.cpu(), since])]


@dataclass(frozen=True)
class Masks:
    """A place's part in sums behind masks.

    Attributes:
        folder: of its clients, which has its key.
    """

    folder: Path

    @property
    def public(self) -> str:
        """Its public key, made with the private one where there is none yet.

        Raises:
            UserError: Flower is not installed, or the folder cannot be written.
        """
        keys, path = _flower().keys, self.folder / KEY
        if not path.exists():
            write_bytes(path, keys.private_key_to_bytes(keys.generate_key_pairs()[0]), mode=0o600)
        private = keys.bytes_to_private_key(path.read_bytes())
        return str(keys.public_key_to_bytes(private.public_key()).decode())

    def hidden(self, total: Any, roster: Roster, mine: list[str], about: str) -> Any:
        """Hide what was folded here: every number as int64.

        Args:
            total: of the clients here.
            roster: of the ask.
            mine: what the roster must say of this place.
            about: digest of all else that the ask is made of.

        Raises:
            ProtocolError: the roster has not this place, or too few; or a number is too large.
        """
        names = sorted(name for name, said in roster.items() if said == mine)
        places = len({key for key, _ in roster.values()})
        if len(names) != 1 or places < max(LEAST, len(roster)):
            raise ProtocolError("no sum hides what these clients send: the roster is not theirs")
        some = [leaf.abs().max().double() for _, leaf in tree.tensors(total) if leaf.numel()]
        most = float(torch.stack(some).max()) if some else 0.0
        if most * len(roster) >= _MOST:
            raise ProtocolError(f"a number of {most:.3g} is too large to be hidden")
        streams = [
            (name > names[0], _Stream(self._shared(key), digest([sorted(roster.items()), about])))
            for name, (key, _) in sorted(roster.items())
            if name != names[0]
        ]
        return tree.map_tensors(lambda leaf: _masked(leaf, streams), total)

    def _shared(self, public: str) -> bytes:
        flower = _flower()
        private = flower.keys.bytes_to_private_key((self.folder / KEY).read_bytes())
        try:
            theirs = flower.keys.bytes_to_public_key(public.encode())
        except ValueError as error:
            raise ProtocolError("the roster has what is no key") from error
        return bytes(flower.agreed.generate_shared_key(private, theirs))


def kinds(total: Any) -> dict[str, str]:
    """The dtypes of what was folded, by path, to read a sum by."""
    return {
        path: str(leaf.dtype).removeprefix("torch.") for path, leaf in tree.tensors({"": total})
    }


def opened(total: Any, dtypes: Mapping[str, str]) -> Any:
    """Read the sum of all places' hidden totals."""
    paths = iter([path for path, _ in tree.tensors({"": total})])
    return tree.map_tensors(lambda leaf: _real(leaf, getattr(torch, dtypes[next(paths)])), total)


class _Stream:
    """The numbers that two places have in common, in order."""

    def __init__(self, shared: bytes, about: str) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        key = hashlib.blake2b(about.encode(), key=shared[:64], digest_size=32).digest()
        self._made = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def take(self, count: int) -> Tensor:
        """So many more, ``(count,)`` int64."""
        drawn = self._made.update(bytes(8 * count))
        return torch.as_tensor(np.frombuffer(drawn, dtype="<i8").copy())


def _masked(leaf: Tensor, streams: list[tuple[bool, _Stream]]) -> Tensor:
    fixed = (leaf.double() * 2.0**_BITS).round().long() if leaf.is_floating_point() else leaf.long()
    for adds, stream in streams:
        mask = stream.take(leaf.numel()).view(leaf.shape)
        fixed = fixed + mask if adds else fixed - mask  # modulo 2^64
    return fixed


def _real(fixed: Tensor, dtype: torch.dtype) -> Tensor:
    return (fixed.double() * 2.0**-_BITS).to(dtype) if dtype.is_floating_point else fixed.to(dtype)


@cache
def _flower() -> SimpleNamespace:
    try:
        from flwr.common.secure_aggregation.crypto import symmetric_encryption
        from flwr.supercore.primitives import asymmetric
    except ImportError as error:
        raise UserError(
            "sums behind masks take Flower's primitives: pip install -c constraints.txt "
            "'./shared[flower]'"
        ) from error
    return SimpleNamespace(keys=asymmetric, agreed=symmetric_encryption)
