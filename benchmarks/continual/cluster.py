"""Generated users of F³CRec on a Ray cluster of this machine, and what ten machines would take.

    python -m benchmarks.continual.cluster [USERS ...]

100,000, 300,000 and 1,000,000 users unless said otherwise, 60 of 2,000 items each on average; an
actor a core, and once more of them. Every actor draws its own users, so that nobody has all; the
server has nobody's data. What a round costs is fitted as a constant, a part by the user and a part
by the actor, which gives that of more users on more machines.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.continual.rounds import leave_one_out, random_block
from coterie.continual.client import make_client
from coterie.continual.settings import Settings, resolve
from coterie.core.cli.command import say
from coterie.core.engines.folder import ClientFolder
from coterie.core.engines.ray_actors import LOCAL, RayActors, connected, cores
from coterie.core.files import write_json
from coterie.core.protocol.card import Card
from coterie.core.protocol.edition import with_edition
from coterie.core.run.apart import EXPECTED, federation_of
from coterie.core.run.driver import FederatedRun
from coterie.core.tables.report import markdown_table
from coterie.core.tensors.keys import Key

SIZES, MORE = (100_000, 300_000, 1_000_000), 8
ITEMS, EACH, ROUNDS = 2000, 60, 4
MACHINES, CORES, USERS, WIRE = 10, 16, 100_000_000, 1.25e9  # 10 Gbit/s
_TICK = os.sysconf("SC_CLK_TCK")


def main(sizes: Sequence[int] = SIZES) -> None:
    """Measure every size, and print what was measured and what follows."""
    with connected(LOCAL):
        here = cores()
        cases = [(sizes[0], MORE * here), *((users, here) for users in sizes)]
        rows = [_measured(*case) for case in cases]
    say("\n".join(markdown_table(rows)))
    if len(sizes) > 1 and max(sizes) >= max(SIZES):  # of less than that nothing follows
        say("\n" + "\n".join(markdown_table([_many(rows)])))


@dataclass(frozen=True)
class Cut:
    """Draws the users of an actor, where it is."""

    card: str
    first: dict[str, int]
    count: int

    def __call__(self, name: str, folder: Path) -> None:
        """Write the folder of some users."""
        ids = torch.arange(self.first[name], self.first[name] + self.count)
        key = Key.from_seed(0)
        block = random_block(key.fold("rows").fold(ids[0]), ids, ITEMS, EACH * self.count)
        card, secrets = Card.from_json(self.card), key.fold("clients").fold(ids)
        ClientFolder.create(folder, card, ids, secrets, {0: leave_one_out(block)})


def _measured(users: int, count: int) -> dict[str, Any]:
    card = _card()
    with tempfile.TemporaryDirectory() as name:
        root, each = Path(name), users // count
        first = {f"clients-{number}": number * each for number in range(count)}
        server = root / "server"
        server.mkdir()
        clients = {name: {"first": begin, "count": each} for name, begin in first.items()}
        write_json(server / EXPECTED, {"clients": clients})
        folders, cut = [root / name for name in first], Cut(card.to_json(), first, each)
        began = time.monotonic()
        actors = RayActors(folders, "cluster", cut=cut, start=600.0)
        with actors:
            run = FederatedRun(federation_of(card, server, actors))
            rounds = list(_rounds(run, actors))
            took, memory = time.monotonic() - began, max(map(_peak, _actors()))
            disk = sum(file.stat().st_size for folder in folders for file in folder.iterdir())
        later = {key: median(one[key] for one in rounds[1:]) for key in rounds[0]}
    return {
        "users": users,
        "actors": count,
        "begun in s": round(took - sum(one["s"] for one in rounds[1:])),
        **{f"{key} a round": round(value, 3) for key, value in later.items()},
        "server MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "actor MB": round(memory / 1024),
        "disk MB": round(disk / 1e6),
    }


def _card() -> Card:
    settings = resolve(replace(Settings(), rounds=ROUNDS, patience=ROUNDS))
    card = Card.of("f3crec", settings, {"n_items": [ITEMS]})
    client = make_client(card)
    return with_edition(replace(card, constants=dict(client.constants())), client.steps())


def _rounds(run: FederatedRun, actors: RayActors) -> Iterator[dict[str, float]]:
    for _ in range(ROUNDS - 1):  # the last one tests, and ends the block
        began, here, there = time.monotonic(), time.process_time(), sum(map(_cpu, _actors()))
        run.advance()
        yield {
            "s": time.monotonic() - began,
            "server CPU s": time.process_time() - here,
            "actors CPU s": sum(map(_cpu, _actors())) - there,
            "MB": (actors.costs.sent + actors.costs.received) / 1e6,
        }


def _actors() -> list[Path]:
    """The actors with clients on this machine, as places of `/proc`."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"ray::Served" in (place / "cmdline").read_bytes():
                found.append(place)
    return found


def _cpu(place: Path) -> float:
    user, system = (place / "stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICK


def _peak(place: Path) -> int:
    (line,) = (one for one in (place / "status").read_text().splitlines() if "VmHWM" in one)
    return int(line.split()[1])


def _many(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What many users take on several machines, an actor a core."""
    known = [[1, row["users"], row["actors"]] for row in rows]
    actors = MACHINES * CORES

    def at(name: str, users: float, actors: float) -> float:
        fit = np.linalg.lstsq(np.array(known, float), [row[name] for row in rows], rcond=None)[0]
        return float(fit @ [1, users, actors])

    each = [[1, row["users"] / row["actors"]] for row in rows]
    memory = np.linalg.lstsq(np.array(each), [row["actor MB"] for row in rows], rcond=None)[0]
    server = at("server CPU s a round", USERS, actors)
    trained = at("actors CPU s a round", USERS, actors) / actors
    wire = at("MB a round", USERS, actors) * 1e6 / WIRE
    return {
        "users": USERS,
        "machines": f"{MACHINES} of {CORES} cores",
        "actors, s a round": round(trained, 1),
        "server, s a round": round(server, 1),
        "on the wire, s a round": round(wire, 1),
        "a round, s": round(server + trained + wire),
        "server GB": round(at("server MB", USERS, actors) / 1e3),
        "GB a machine": round(CORES * float(memory @ [1, USERS / actors]) / 1e3),
    }


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or SIZES)
