"""Additively homomorphic encryption of tables by CKKS, through TenSEAL (extra ``ckks``).

The clients share one private key, the server has the public key alone (Chai et al., section 4).
128-bit security by the Homomorphic Encryption Standard: degree 8192 and a modulus of 160 bits.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.extras import require
from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.protocol.uploads import Fold
from coterie.core.tensors.stacked import Ragged

DEGREE = 8192
MODULUS_BITS = (60, 40, 60)
SCALE = 2.0**40
SLOTS = DEGREE // 2  # numbers in a cipher text
_TAG_BYTES = 32


class KeyHolder:
    """What every client has: the private key, once it is made or received.

    Args:
        secret: shared by the clients; the private key is handed around behind it.
    """

    def __init__(self, secret: CommonSecret) -> None:
        self._secret = secret
        self._context: Any = None

    def generate(self) -> tuple[Tensor, Tensor]:
        """Make a pair of keys; return the public one, and the private one wrapped, ``(b,)`` uint8.

        Raises:
            UserError: TenSEAL is not installed.
        """
        tenseal = _tenseal()
        kind = tenseal.SCHEME_TYPE.CKKS
        context = tenseal.context(kind, DEGREE, coeff_mod_bit_sizes=list(MODULUS_BITS))
        context.global_scale = SCALE
        self._context = context
        others = {"save_galois_keys": False, "save_relin_keys": False}
        public = context.serialize(save_public_key=True, save_secret_key=False, **others)
        private = context.serialize(save_public_key=True, save_secret_key=True, **others)
        return _tensor(public), _tensor(_wrap(self._wrapping(), private))

    def unwrap(self, wrapped: Tensor) -> None:
        """Receive the private key, unless it is here already.

        Raises:
            UserError: it was wrapped behind another secret.
        """
        if self._context is None:
            opened = _unwrap(self._wrapping(), wrapped.cpu().numpy().tobytes())
            self._context = _tenseal().context_from(opened)

    def encrypt(self, table: Tensor) -> list[bytes]:
        """Encrypt one table, in parts of `SLOTS` numbers."""
        assert self._context is not None, "the client has no private key yet"
        return _encrypt(self._context, table)

    def decrypt(self, cipher: Tensor, parts: Tensor) -> Tensor:
        """Decrypt one table: the numbers in it, ``(m,)`` float64."""
        assert self._context is not None, "the client has no private key yet"
        vectors = _load(self._context, _split(cipher, parts.tolist()))
        return torch.cat(
            [torch.tensor(vector.decrypt(), dtype=torch.float64) for vector in vectors]
        )

    def _wrapping(self) -> bytes:
        return self._secret.derive("ckks")


class PublicKey:
    """What the server has.

    Args:
        public: ``(b,)`` uint8 from `KeyHolder.generate`.
    """

    def __init__(self, public: Tensor) -> None:
        self._context = _tenseal().context_from(public.cpu().numpy().tobytes())

    def encrypt(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Encrypt a table: ``(b,)`` uint8, and the bytes of its parts, ``(k,)`` int64."""
        return _join(_encrypt(self._context, table))

    def sum(self) -> CipherSum:
        """A fold that adds uploads without decrypting them."""
        return CipherSum(self._context)

    def add(self, cipher: Tensor, parts: Tensor, total: list[Any]) -> tuple[Tensor, Tensor]:
        """Add a folded sum to an encrypted table."""
        vectors = _load(self._context, _split(cipher, parts.tolist()))
        return _join([(one + other).serialize() for one, other in zip(vectors, total, strict=True)])


@dataclass(frozen=True)
class EncryptedSum:
    """Sums over the clients.

    Attributes:
        cipher: encrypted vectors.
        loss: ``()``.
        seconds: ``()``.
    """

    cipher: list[Any]
    loss: Tensor
    seconds: Tensor


class CipherSum(Fold):
    """Sum the fields of uploads with a ``cipher`` over the clients."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def of(self, up: Any) -> EncryptedSum:
        """Sum the uploads of some clients."""
        summed: list[Any] = []
        place = 0
        for sizes in up.parts.tolist():
            end = place + sum(sizes)
            vectors = _load(self._context, _split(up.cipher.values[place:end], sizes))
            place, summed = end, _added(summed, vectors)
        return EncryptedSum(summed, up.loss.sum(), up.seconds.sum())

    def merge(self, total: EncryptedSum, part: EncryptedSum) -> EncryptedSum:
        """Join two groups of clients."""
        summed = _added(total.cipher, part.cipher)
        return EncryptedSum(summed, total.loss + part.loss, total.seconds + part.seconds)


def _added(summed: list[Any], vectors: list[Any]) -> list[Any]:
    """Add encrypted vectors in place; none yet are the vectors themselves."""
    for one, other in zip(summed, vectors, strict=bool(summed)):
        one += other
    return summed or vectors


def pack(encrypted: Sequence[Sequence[bytes]]) -> tuple[Ragged, Tensor]:
    """Stack the cipher texts of C clients: C rows of bytes, and their parts ``(C, k)`` int64."""
    parts = torch.tensor([[len(part) for part in table] for table in encrypted])
    flat = b"".join(part for table in encrypted for part in table)
    return Ragged.from_lengths(_tensor(flat), parts.sum(1)), parts


def _encrypt(context: Any, table: Tensor) -> list[bytes]:
    numbers = table.detach().reshape(-1).double().cpu().numpy()
    starts = range(0, numbers.size, SLOTS)
    vector = _tenseal().ckks_vector
    return [vector(context, numbers[start : start + SLOTS]).serialize() for start in starts]


def _load(context: Any, parts: Sequence[bytes]) -> list[Any]:
    return [_tenseal().ckks_vector_from(context, part) for part in parts]


def _split(cipher: Tensor, sizes: Sequence[int]) -> list[bytes]:
    return [part.numpy().tobytes() for part in torch.split(cipher.cpu(), list(sizes))]


def _join(parts: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    return _tensor(b"".join(parts)), torch.tensor([len(part) for part in parts])


def _tensor(data: bytes) -> Tensor:
    return torch.as_tensor(np.frombuffer(data, dtype=np.uint8).copy())


def _wrap(secret: bytes, data: bytes) -> bytes:
    """Encrypt by the stream of SHAKE-256 under the secret, and authenticate by HMAC-SHA256."""
    mixed = _xor(data, hashlib.shake_256(b"stream" + secret).digest(len(data)))
    return hmac.digest(secret, mixed, "sha256") + mixed


def _unwrap(secret: bytes, wrapped: bytes) -> bytes:
    tag, mixed = wrapped[:_TAG_BYTES], wrapped[_TAG_BYTES:]
    if not hmac.compare_digest(tag, hmac.digest(secret, mixed, "sha256")):
        raise UserError("the clients' key is wrapped in a secret that the clients here do not have")
    return _xor(mixed, hashlib.shake_256(b"stream" + secret).digest(len(mixed)))


def _xor(first: bytes, second: bytes) -> bytes:
    return (np.frombuffer(first, np.uint8) ^ np.frombuffer(second, np.uint8)).tobytes()


def _tenseal() -> Any:
    require("ckks", "transport 'ckks'", "tenseal")
    import tenseal

    return tenseal
