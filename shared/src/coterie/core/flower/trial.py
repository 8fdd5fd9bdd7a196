"""A whole deployment on this machine: SuperLink, nodes, certificates and keys. Torch-free.

All of it is real: processes, TLS, registered keys, a database; only that it is on loopback.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from coterie.core.engines.serving import serving
from coterie.core.errors import UserError
from coterie.core.files import write_json, write_text, writing
from coterie.core.flower.certificates import write_authority, write_key
from coterie.core.flower.names import KEYS, VARIABLE
from coterie.core.flower.node_folder import KEY, client_folders
from coterie.core.flower.programs import environment, free_port, program, told
from coterie.core.flower.supervisor import Kept, last_line

CONNECTION = "lab"
"""What ``flwr run`` calls the SuperLink."""
_UP = 60.0  # seconds that a SuperLink may take to come up


class Trial:
    """SuperLink and nodes on this machine, started anew when they die, until the block ends.

    Args:
        folder: for certificates, database and logs; one that is there is gone on with.
        nodes: their folders.
        server: the server's folder, which gets the nodes' keys.

    Raises:
        UserError: they do not come up.

    Example:
        with Trial(Path("trial"), nodes, Path("deployment/server")) as trial:
            number = trial.submit(Path("deployment"))
    """

    def __init__(self, folder: Path, nodes: Sequence[Path], server: Path) -> None:
        self.folder, self.server = folder.absolute(), server.absolute()
        self.nodes = [node.absolute() for node in nodes]
        self.port = 0
        self._kept: dict[str, Kept] = {}
        self._held = ExitStack()

    def __enter__(self) -> Trial:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(serving(self.folder, patience=0.0))
        try:
            self._prepare()
            self._start_superlink()
            self._register()
            for node in self.nodes:
                self.start_node(node)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    @property
    def address(self) -> str:
        """Of the SuperLink."""
        return f"127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        """The certificate by which it is known."""
        return self.folder / "ca.crt"

    def refusals(self) -> dict[str, str]:
        """Nodes that have ended as their owner must mend something, and what they said."""
        over = {name: kept for name, kept in self._kept.items() if kept.over}
        return {name: last_line(kept.log) for name, kept in over.items()}

    def process(self, name: str) -> Kept:
        """``superlink``, or a node by the name of its folder."""
        return self._kept[name]

    def end(self) -> None:
        """End all processes; what they have kept stays."""
        for name in reversed(list(self._kept)):
            self._kept.pop(name).end()
        self._held.close()

    def submit(self, app: Path, config: Mapping[str, Any] | None = None) -> str:
        """Start a run of an app; its number.

        Raises:
            UserError: Flower refuses it.
        """
        self._wait_until_up()
        given = " ".join(f"{key}={json.dumps(value)}" for key, value in (config or {}).items())
        more = ["--run-config", given] if given else []
        found = self._flwr("run", str(app.absolute()), CONNECTION, *more)
        return str(found["run-id"])

    def state(self, number: str) -> str:
        """What Flower says of a run: ``running``, ``finished:completed``, …; empty for nothing."""
        with suppress(UserError):
            found = self._flwr("list", CONNECTION, "--run-id", number)
            for run in found.get("runs", ()):
                return str(run.get("status", ""))
        return ""

    def start_node(self, node: Path) -> Kept:
        """Start a node, by the command that its owner would use."""
        words = [
            *(program("coterie"), "node", "up", str(node)),
            *("--superlink", self.address, "--ca", str(self.authority)),
            *("--key", str(node / KEY)),
        ]
        kept = Kept(lambda: words, self.folder / "log" / f"{node.name}.log", once=(2,))
        self._kept[node.name] = kept
        return kept

    def _prepare(self) -> None:
        home = self.folder / "flower"
        with writing(self.folder):
            home.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)  # its database has all that crosses
            write_authority(self.folder)  # anew at each start, so that it has not expired
        keys: dict[str, str] = {}
        for node in self.nodes:
            line = write_key(node / KEY).read_text().strip()
            keys |= {folder.name: line for folder in client_folders(node)}
        write_json(self.server / KEYS, keys)
        self.port = free_port()
        write_text(
            home / "config.toml",
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{self.address}"\nroot-certificates = {json.dumps(str(self.authority))}\n',
        )

    def _start_superlink(self) -> None:
        words = [
            *(program("flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-certfile", str(self.folder / "server.pem")),
            *("--ssl-keyfile", str(self.folder / "server.key")),
            *("--ssl-ca-certfile", str(self.authority)),
            *("--database", str(self.folder / "state.db")),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        ]
        here = environment(self.folder / "flower") | {VARIABLE: str(self.server)}
        log = self.folder / "log" / "superlink.log"
        self._kept["superlink"] = Kept(lambda: words, log, here)
        self._wait_until_up()

    def _wait_until_up(self) -> None:
        until = time.monotonic() + _UP
        while not self.is_up():
            if time.monotonic() > until:
                raise UserError(
                    f"the SuperLink does not come up: see {self.process('superlink').log}"
                )
            time.sleep(0.1)

    def is_up(self) -> bool:
        """Whether the SuperLink answers."""
        with suppress(OSError):
            known = ssl.create_default_context(cafile=str(self.authority))
            url = f"https://{self.address}/health"
            with urllib.request.urlopen(url, context=known, timeout=2) as answer:
                return bool(answer.status == 200)
        return False

    def _register(self) -> None:
        """Make the nodes' keys known to the SuperLink, once in its life."""
        for node in self.nodes:
            try:
                self._flwr("supernode", "register", str(node / f"{KEY}.pub"), CONNECTION)
            except UserError as error:
                if "already in use" not in str(error):
                    raise

    def _flwr(self, *words: str) -> dict[str, Any]:
        return told(words, environment(self.folder / "flower"), self.folder)
