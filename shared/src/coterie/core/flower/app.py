"""A Flower app of a paper: what ``flwr run`` sends to the SuperLink, and that to the nodes."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path

from coterie.core.files import write_text, writing
from coterie.core.protocol.card import Card

SERVE = "coterie.core.flower.server"
_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "coterie-{paper}"
version = "1.0.0"
description = "{paper} by coterie, on the packages that server and nodes have installed themselves"
license = {{ file = "LICENSE" }}
dependencies = [{packages}]

[tool.hatch.build.targets.wheel]
packages = ["coterie_app"]

[tool.flwr.app]
publisher = "coterie"
fab-include = ["/coterie_app/*.py", "/card.json", "/README.md", "/LICENSE"]

[tool.flwr.app.components]
serverapp = "coterie_app.server_app:app"
clientapp = "coterie_app.client_app:app"

[tool.flwr.app.config]
server = ""  # folder of the server; by default $COTERIE_SERVER of the SuperLink
resume = false  # go on with the newest run
{config}"""
_SERVER = '''\
"""The ServerApp: a run of coterie, from the server's own folder."""

from flwr.serverapp import ServerApp

from {module} import serve

app = ServerApp()


@app.main()
def main(grid, context):
    """Run it."""
    serve(grid, context)
'''
_CLIENT = '''\
"""The ClientApp: hands what it is asked to the node's own process with the clients."""

from coterie.core.flower.client_app import app

__all__ = ["app"]
'''


def write_app(
    folder: Path, card: Card, about: str, *, module: str = SERVE, config: str = ""
) -> None:
    """Write the app, which has nobody's data and no path of this machine.

    Args:
        folder: made if it is missing.
        card: the public card.
        about: text of its README.
        module: whose ``serve(grid, context)`` is the ServerApp.
        config: more lines of the run's configuration, as TOML.

    Raises:
        UserError: the folder cannot be written.
    """
    needed = [f"{name}=={version}" for name, version in sorted(card.versions.items())]
    packages = ", ".join(json.dumps(one) for one in ["flwr>=1.42,<1.43", *needed])
    code = folder / "coterie_app"
    with writing(folder):
        code.mkdir(parents=True, exist_ok=True)
    project = _PROJECT.format(paper=card.paper, packages=packages, config=config)
    write_text(folder / "pyproject.toml", project)
    write_text(code / "__init__.py", '"""A paper of coterie, as an app of Flower."""\n')
    write_text(code / "server_app.py", _SERVER.format(module=module))
    write_text(code / "client_app.py", _CLIENT)
    write_text(folder / "LICENSE", distribution("coterie-core").read_text("licenses/LICENSE") or "")
    write_text(folder / "README.md", about)
    write_text(folder / "card.json", card.to_json())
