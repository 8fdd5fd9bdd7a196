"""Certificates and keys for a trial on one machine, and the keys of nodes. Torch-free.

Real deployments bring a certificate from their own authority; the key of a node is made where it
stays, by ``coterie node init``.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from coterie.core.errors import UserError

DAYS = 30
"""That the certificates of a trial are good for."""


def write_authority(folder: Path, days: float = DAYS, names: Sequence[str] = ()) -> None:
    """Write ``ca.crt`` and, signed by it, ``server.pem`` with ``server.key`` for this machine.

    Args:
        folder: where they are written.
        days: after which the server's certificate has expired; below 0 it has.
        names: of hosts, or their addresses, under which the server is known beside this machine's.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def begun(
        subject: str, issuer: str, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        today = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(today - datetime.timedelta(days=DAYS))
            .not_valid_after(today + datetime.timedelta(days=days))
        )

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = (
        begun("coterie trial", "coterie trial", authority)
        .add_extension(x509.BasicConstraints(True, None), critical=True)
        .add_extension(usage, critical=True)
        .sign(authority, hashes.SHA256())
    )

    def known_as(name: str) -> x509.GeneralName:
        with suppress(ValueError):
            return x509.IPAddress(ipaddress.ip_address(name))
        return x509.DNSName(name)

    here = [known_as(name) for name in ("localhost", "127.0.0.1", *names)]
    leaf = (
        begun("localhost", "coterie trial", server)
        .add_extension(x509.BasicConstraints(False, None), critical=True)
        .add_extension(x509.SubjectAlternativeName(here), critical=False)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "server.pem").write_bytes(leaf.public_bytes(pem))
    secret = server.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_secret(folder / "server.key", secret)
    (folder / "ca.crt").write_bytes(root.public_bytes(pem))


def write_key(path: Path) -> Path:
    """Make the key of a node, unless it has one; its public half is beside it, as ``.pub``.

    Raises:
        UserError: the folder cannot be written, or what is there is no key.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    public = path.with_name(f"{path.name}.pub")
    try:
        if path.exists():  # which stays, whatever became of its public half
            key = serialization.load_ssh_private_key(path.read_bytes(), None)
        else:
            key = ec.generate_private_key(ec.SECP384R1())
            secret = key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.OpenSSH,
                serialization.NoEncryption(),
            )
            _write_secret(path, secret)
        line = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        public.write_bytes(line + b"\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is no private key of OpenSSH without a password") from error
    return public


def public_key(line: str, whose: str) -> bytes:
    """A public key as Flower knows it, in PEM, of a line as in a ``.pub`` file.

    Args:
        line: of OpenSSH.
        whose: for the error.

    Raises:
        UserError: it is no key of an elliptic curve, as Flower demands.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_ssh_public_key(line.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("another kind of key")
    except Exception as error:
        raise UserError(
            f"the public key of {whose} is none of an elliptic curve, as ssh-keygen -t ecdsa and "
            "coterie node init make them"
        ) from error
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _write_secret(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
