"""``coterie node``: what an organisation does that takes part with its own data."""

from __future__ import annotations

import json
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coterie.core.cli.command import JSON_HELP, Arguments, print_json, print_rows, tell, wants_help
from coterie.core.engines.serving import forget, serving
from coterie.core.errors import UserError, nearest
from coterie.core.flower.node import SuperLink, up
from coterie.core.flower.node_folder import KEY, STATE, client_folders
from coterie.core.flower.programs import check_installed
from coterie.core.flower.requests import noted, remarks
from coterie.core.flower.supervisor import alive
from coterie.core.looking.privacy import releases
from coterie.core.registry.papers import find_paper, heavy

ABOUT = {
    "init": "Make the folder of a node: your data stay in it",
    "up": "Keep a node up, until Ctrl-C",
    "status": "Show what runs, and how far the clients are",
    "audit": "Show all that the server has asked for",
    "reset": "Forget the private state of a run, to take part in another",
}
_SHOWN = ("step", "field", "content", "noise", "depends on")  # of what leaves
_LINES = 20  # of the audit that are printed


def run_node(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    commands: dict[str, Callable[[Sequence[str]], None]] = {
        "init": _init,
        "up": _up,
        "status": _status,
        "audit": _audit,
        "reset": _reset,
    }
    if not argv or (wants_help(argv) and argv[0] not in commands):
        lines = [f"  {name:<8} {about}" for name, about in ABOUT.items()]
        sys.stdout.write("\n".join(["usage: coterie node COMMAND [--help] ...", "", *lines]) + "\n")
        return
    if argv[0] not in commands:
        raise UserError(f"node has no command '{argv[0]}': {nearest(argv[0], commands)}")
    commands[argv[0]](argv[1:])


def _up(argv: Sequence[str]) -> None:
    parser = Arguments("node up", ABOUT["up"])
    parser.add_argument("node", type=Path, metavar="NODE", help="folder of the node")
    parser.add_argument(
        "--superlink", required=True, metavar="HOST:PORT", help="where the server is"
    )
    parser.add_argument(
        "--ca", required=True, type=Path, help="certificate that signed the server's"
    )
    parser.add_argument("--key", type=Path, help="private key (default: NODE/node.key)")
    given = parser.parse_args(argv)
    check_installed()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    tell(f"{given.node} is kept up for {given.superlink}; Ctrl-C ends it")
    up(given.node, SuperLink(given.superlink, given.ca, given.key or given.node / KEY), stop, tell)


def _init(argv: Sequence[str]) -> None:
    parser = Arguments("node init", ABOUT["init"])
    parser.add_argument("card", type=Path, metavar="CARD", help="card.json, of the coordinator")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="PATH",
        help="your clients' data: data-0.safetensors of one block, or a folder with one a block",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="NODE", help="folder to make")
    parser.add_argument(
        "--name", help="of the clients' folder, as agreed (default: the name of PATH)"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    given = parser.parse_args(argv)
    card = _card(given.card)
    paper = find_paper(card["paper"])
    tell(f"What would leave {given.out}, in {paper.name}, method {card['settings'].get('method')}")
    chosen = card["settings"]
    rows = releases(paper, chosen.get("privacy.steps", ()), chosen.get("method"))
    print_rows([{name: row[name] for name in _SHOWN} for row in rows if row["direction"] == "up"])
    tell(_as_what(card["settings"]))
    if not given.yes and not _agreed():
        raise UserError("nothing was written")
    public = heavy("coterie.core.flower.own_data").write_node(
        given.out, given.card, given.data, given.name
    )
    tell(f"{given.out} is ready. Send the coordinator {public}, and nothing else.")


def _as_what(settings: Mapping[str, Any]) -> str:
    """Say whether uploads leave one by one, and who adds noise to them."""
    rule, noise = settings.get("aggregate.rule", "none"), settings.get("privacy.noise", "none")
    bound, over = settings.get("aggregate.norm_bound"), settings.get("aggregate.over", "clients")
    one_by_one = (rule != "none" or bound is not None) and over == "clients"
    alone = "What the method only sums leaves as one sum of all clients here"
    alone += ", behind masks." if settings.get("aggregate.secret") else "."
    said = [
        "Each client's upload leaves by itself, for the server to compare or to shorten it."
        if one_by_one
        else alone
    ]
    if noise != "none":
        at_server = settings.get("privacy.at", "client") == "server"
        clip = settings.get("privacy.clip")
        who = "by the server, to the sum" if at_server else "here, before an upload leaves"
        said.append(f"Uploads are clipped to {clip}; {noise} noise is added {who}.")
    return " ".join(said)


def _agreed() -> bool:
    sys.stdout.write("Take part? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _status(argv: Sequence[str]) -> None:
    given = _of_node("status", argv)
    path = given.node / STATE
    state = json.loads(path.read_text()) if path.is_file() else None
    if state is not None and not alive(state["pid"]):
        state = None  # it was killed
    rows = [_position(folder) for folder in client_folders(given.node)]
    if given.json:
        print_json({"node": state, "clients": rows})
        return
    if state is None:
        tell(f"{given.node} is down: say coterie node up {given.node}")
    else:
        for name in ("clients", "supernode"):
            one = state[name]
            what = f"process {one['pid']}" if one["pid"] else "down, started again in a moment"
            tell(f"{name}: {what}, started {one['starts']} times")
            if one["said"]:
                tell(one["said"], "  last: ")
        tell(f"server: {state['superlink']}")
    print_rows(rows)


def _position(folder: Path) -> dict[str, Any]:
    """How far the clients of a folder are; torch-free."""
    path = folder / "position.json"
    new: dict[str, Any] = {"run": "", "order": [0, 0, 0]}
    try:
        own = json.loads((folder / "own.json").read_text())
        known = json.loads(path.read_text()) if path.is_file() else new
    except ValueError as error:
        raise UserError(f"{folder} is damaged: {error}") from error
    return {
        "folder": folder.name,
        "clients": len(own["secrets"]),
        "run": known["run"],
        "rounds": max(known["order"][1], 0),
    }


def _audit(argv: Sequence[str]) -> None:
    given = _of_node("audit", argv)
    card = _card(client_folders(given.node)[0] / "card.json")
    lines = list(noted(given.node))
    said = remarks(lines, card)
    if given.json:
        print_json({"requests": [asdict(one) for one in lines], "remarks": said})
        return
    shown = [
        {
            "time": one.time[:19],
            "folder": one.folder,
            "round": f"{one.block}.{one.round}",
            "step": one.step,
            "answered": one.answered,
            "down": one.down,
            "up": one.up,
            "why": one.why,
        }
        for one in lines[-_LINES:]
    ]
    print_rows(shown, f"The last {len(shown)} of {len(lines)} requests, times in UTC")
    up_bytes = sum(one.up for one in lines)
    tell(f"{up_bytes:,} bytes have left in {len(lines):,} replies")
    for line in said:
        tell(line, "Note: ")
    if not said:
        tell("All of it is what the card has.")


def _reset(argv: Sequence[str]) -> None:
    given = _of_node("reset", argv)
    for folder in client_folders(given.node):
        with serving(folder, patience=0.0):
            forget(folder)
        tell(f"{folder} has forgotten its private state")


def _of_node(command: str, argv: Sequence[str]) -> Namespace:
    parser = Arguments(f"node {command}", ABOUT[command])
    parser.add_argument("node", type=Path, metavar="NODE", help="folder of the node")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser.parse_args(argv)


def _card(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        if not isinstance(found["settings"], dict) or not isinstance(found["paper"], str):
            raise ValueError
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no card: ask the coordinator for card.json") from error
    return found
