"""By which key the node of a clients' folder is known. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path

from coterie.core.errors import UserError
from coterie.core.flower.certificates import public_key
from coterie.core.flower.names import KEYS


def known_keys(server: Path) -> dict[str, bytes]:
    """Name of a clients' folder -> public key of its node, in PEM, by the server's folder.

    Raises:
        UserError: the folder does not say, or a key is none.
    """
    path = server / KEYS
    try:
        plain = json.loads(path.read_text())
        lines = {str(name): str(line) for name, line in plain.items()}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise UserError(
            f"{path} must name, for each folder of clients, the public key of its node"
        ) from error
    return {name: public_key(line, f"'{name}' in {path}") for name, line in lines.items()}
