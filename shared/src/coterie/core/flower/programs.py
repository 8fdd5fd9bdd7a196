"""The programs of Flower, and the environment in which they tell nobody anything. Torch-free."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.extras import require

_BIN = Path(sys.executable).parent
_LONGEST = 120.0  # seconds for a command


def check_installed() -> None:
    """Check that Flower is there.

    Raises:
        UserError: it is not.
    """
    require("flower", "a federation over machines", "flwr")


def program(name: str) -> str:
    """A program of Flower's, beside this interpreter."""
    return str(_BIN / name)


def environment(home: Path, *first: Path) -> dict[str, str]:
    """The environment of Flower's programs: no telemetry, no update check, nothing installed.

    Args:
        home: where Flower keeps connections and apps.
        first: where programs are looked for before those of Flower.
    """
    path = [*map(str, first), str(_BIN), os.environ.get("PATH", os.defpath)]
    return {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "UV_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # a process a message, in twice the time without
        "PATH": os.pathsep.join(path),
    }


def told(words: Sequence[str], environment: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Run ``flwr`` with ``--format json``, and give what it says.

    Raises:
        UserError: it says that it did not succeed, or nothing.
    """
    try:
        done = subprocess.run(
            [program("flwr"), *words, "--format", "json"],
            env={**os.environ, **environment},
            cwd=folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_LONGEST,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"flwr {words[0]} did not succeed: {error}") from error
    said = done.stdout[done.stdout.find("{") :]
    try:
        found: dict[str, Any] = json.loads(said)
    except ValueError:
        found = {}
    if not found.get("success"):  # its exit status does not tell
        why = found.get("error-message") or (done.stderr or done.stdout)[-300:]
        raise UserError(f"flwr {words[0]} did not succeed: {' '.join(str(why).split())}")
    return found


def free_port() -> int:
    """A port of this machine that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
