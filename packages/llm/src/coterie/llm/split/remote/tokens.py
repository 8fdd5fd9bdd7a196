"""Who may speak to the server: tokens that all follow from one secret of the server."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from coterie.core.errors import UserError
from coterie.core.files import replacing, writing

OWN_TOKENS = "split.token"
"""In the folder of clients that run apart: their own tokens, by their numbers."""
_SHORTEST = 32


def client_token(secret: str, client: int) -> str:
    """Derive the token of one client; it tells nothing about those of others.

    Example:
        >>> client_token("a secret", 3) == client_token("a secret", 4)
        False
    """
    return _derive(secret, f"client {client}")


def admin_token(secret: str) -> str:
    """Derive the token of the coordinator, who decides how parts are mixed."""
    return _derive(secret, "admin")


def same(given: str, expected: str) -> bool:
    """Compare tokens in a time that tells nothing."""
    return hmac.compare_digest(given.encode(), expected.encode())


def write_tokens(path: Path, tokens: Mapping[int, str]) -> None:
    """Write the tokens of some clients into a file of theirs, for its owner only.

    Raises:
        UserError: the file cannot be written.
    """
    content = json.dumps({str(client): token for client, token in tokens.items()})
    with writing(path), replacing(path) as temporary:
        opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(opened, "w") as file:
            file.write(content + "\n")


def read_tokens(path: Path) -> Callable[[int], str]:
    """Read the tokens of some clients; what is given finds one.

    Raises:
        UserError: the file is missing or holds something else; later, a client is not in it.
    """
    try:
        tokens = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the client's own token in {path}: {error}") from None
    if not isinstance(tokens, dict) or not all(isinstance(one, str) for one in tokens.values()):
        raise UserError(f'{path} must hold the token of each client of it, as {{"3": "…"}}')

    def find(client: int) -> str:
        if str(client) not in tokens:
            raise UserError(f"{path} has no token of client {client}")
        found: str = tokens[str(client)]
        return found

    return find


def read_secret(path: Path) -> str:
    """Read the server's secret.

    Raises:
        UserError: the file is missing or too short.
    """
    try:
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the split server's secret {path}: it is written by `coterie llm serve`"
        ) from error
    if len(secret) < _SHORTEST:
        raise UserError(f"the secret in {path} is shorter than {_SHORTEST} characters")
    return secret


def make_secret(path: Path) -> str:
    """Read the secret, or draw one and write it for its owner only.

    Raises:
        UserError: the file cannot be written, or what is there is too short.
    """
    if path.exists():
        return read_secret(path)
    # Not of the run's seed: whoever knows the settings must not know the tokens.
    secret = secrets.token_hex(32)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")
    return secret


def _derive(secret: str, name: str) -> str:
    return hmac.new(secret.encode(), name.encode(), hashlib.sha256).hexdigest()
