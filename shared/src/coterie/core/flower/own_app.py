"""``flwr-clientapp`` of a node: runs the ClientApp that is installed here, and none that is sent.

Flower sends a node the server's app and starts a process with it for every message, so whoever has
the SuperLink could run anything on every node. `node.up` puts this program in its place. What the
server sends is neither installed nor imported; its bytes go to the process with the clients.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError

_NAME = "flwr-clientapp"
REFUSED = ("flwr-agentapp", "flwr-serverapp", "flwr-simulation", "flwr-model", "flwr-connector")
"""What else a run may ask a SuperNode to start; all of it would run what was sent."""
_REPLACED = ("install_from_fab", "get_project_dir", "get_load_client_app_fn")


def write_programs(folder: Path) -> Path:
    """Write the programs that Flower is to find first; the folder for its search path.

    Raises:
        UserError: programs in this folder cannot be run, so that Flower would find its own.
    """
    place = folder / "bin"
    place.mkdir(mode=0o700)
    own = f'exec {shlex.quote(sys.executable)} -m {__name__} "$@"'
    refusal = "echo 'this node runs nothing that is sent' >&2; exit 1"
    for name, line in {_NAME: own, **dict.fromkeys(REFUSED, refusal)}.items():
        path = place / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o700)
        if shutil.which(name, path=str(place)) is None:
            raise UserError(
                f"no program can be run in {folder.parent}: set TMPDIR to a folder that is not "
                "mounted with noexec"
            )
    return place


def main() -> None:
    """Answer one message, with the arguments that Flower gives ``flwr-clientapp``."""
    from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
    from flwr.supercore.tls import validate_and_resolve_root_certificates

    parser = argparse.ArgumentParser(prog=_NAME)
    parser.add_argument("--runtime-api-address", required=True)
    add_args_flwr_app_common(parser)
    given = parser.parse_args()
    certificates = validate_and_resolve_root_certificates(given.root_certificates, given.insecure)
    flower = with_own_app()
    flower.run_clientapp(
        runtime_api_address=given.runtime_api_address,
        token=try_obtain_flwr_app_token(given),
        insecure=given.insecure,
        certificates=certificates,
        parent_pid=given.parent_pid,
        runtime_dependency_install=False,
    )


def with_own_app() -> Any:
    """Flower's module that runs a ClientApp, such that it runs ours.

    Raises:
        UserError: it is another version of Flower's than this was written for.
    """
    from flwr.supernode.runtime import run_clientapp as flower

    from coterie.core.flower.client_app import app

    missing = [name for name in _REPLACED if not hasattr(flower, name)]
    if missing:
        raise UserError(f"this flwr has no {missing[0]}: install flwr>=1.42,<1.43")
    replaced: dict[str, Any] = {
        "install_from_fab": lambda *_, **__: None,
        "get_project_dir": lambda *_: Path(),
        "get_load_client_app_fn": lambda *_, **__: lambda *_: app,
    }
    for name, function in replaced.items():
        setattr(flower, name, function)
    return flower


if __name__ == "__main__":
    main()
