"""The folder of a node: the folders of its clients, its key, its logs. Torch-free.

- one folder of clients or several (`coterie.core.engines.folder`), each with its own ``card.json``;
- ``node.key`` and ``node.key.pub``, if ``coterie node init`` made them;
- ``requests.jsonl``: what it was asked (`coterie.core.flower.requests`);
- ``state.json``: what runs now;
- ``log/``: what its processes say.
"""

from __future__ import annotations

from pathlib import Path

from coterie.core.errors import UserError

KEY, STATE = "node.key", "state.json"
SOCKET = "coterie-socket"
"""What a node's configuration calls the socket of the process that has the clients."""


def client_folders(node: Path) -> list[Path]:
    """The folders of clients in that of a node, by name.

    Raises:
        UserError: it has none.
    """
    found = sorted(path.parent for path in node.glob("[!.]*/own.json"))
    if not found:
        raise UserError(
            f"{node} is no folder of a node: make one by coterie node init CARD --data PATH --out "
            f"{node}"
        )
    return found
