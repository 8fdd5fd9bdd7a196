"""Generated users of F³CRec behind nodes on Flower's runtime: seconds and memory of each process.

    python -m benchmarks.core.many_users [USERS [NODES [ROUNDS]]]

20,000 users, 4 nodes and 3 rounds unless said otherwise; 2,000 items, about 25 of them a user, some
more popular than others.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.cli.command import say
from coterie.core.cli.deploy import follow, local_nodes
from coterie.core.cli.main import main as coterie
from coterie.core.flower.trial import Trial
from coterie.core.tables.report import markdown_table

ITEMS, EACH = 2000, 25
_KINDS = {
    "flower-superlink": "SuperLink",
    "flwr-serverapp": "ServerApp",
    "flower-supernode": "SuperNode",
    "resident": "clients' process",
}


def main(users: int = 20_000, nodes: int = 4, rounds: int = 3) -> None:
    """Deploy, run and print what it took."""
    with tempfile.TemporaryDirectory() as name:
        root, file = Path(name) / "deployed", Path(name) / "users.csv"
        _write(file, users)
        began = time.monotonic()
        words = ["deploy", "f3crec", "--data.name", str(file), "--nodes", str(nodes)]
        words += ["--data.columns", "user=user,item=item,time=time", "--logger.wandb", "off"]
        words += ["--trainer.max_epochs", str(rounds), "--out", str(root)]
        assert coterie(words) == 0
        took = time.monotonic() - began
        with (
            Trial(root / "trial", local_nodes(root, nodes), root / "server") as trial,
            _Watch() as w,
        ):
            follow(trial, root)
        (run,) = (root / "server" / "runs").glob("*/*")
        with (run / "metrics.csv").open() as lines:
            told = list(csv.DictReader(lines))
        say(f"{users:,} users behind {nodes} nodes; taken apart in {took:.0f} s\n")
        keys = ("fed/clients", "cost/seconds", "cost/sent_bytes", "cost/received_bytes")
        say("\n".join(markdown_table([{key: row[key] for key in keys} for row in told])))
        say("")
        say("\n".join(markdown_table(w.rows())))


def _write(file: Path, users: int) -> None:
    draw = np.random.default_rng(0)
    popularity = 1 / (10 + np.arange(ITEMS))
    with file.open("w") as out:
        out.write("user,item,time\n")
        for user in range(users):
            items = draw.choice(ITEMS, EACH, replace=False, p=popularity / popularity.sum())
            times = draw.integers(0, 10**9, EACH)
            out.writelines(f"{user},{i},{t}\n" for i, t in zip(items, times, strict=True))


class _Watch:
    """Looks how much memory processes take, by what they are."""

    def __init__(self) -> None:
        self._most: dict[tuple[str, int], int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()

    def rows(self) -> list[dict[str, Any]]:
        """The largest of each kind."""
        found: dict[str, list[int]] = {}
        for (kind, _), size in self._most.items():
            found.setdefault(kind, []).append(size)
        return [
            {"process": kind, "peak MB": round(max(sizes) / 1024), "how many": len(sizes)}
            for kind, sizes in found.items()
        ]

    def _look(self) -> None:
        while not self._over.wait(0.5):
            for place in Path("/proc").iterdir():
                with suppress(OSError, ValueError, IndexError):
                    words = (place / "cmdline").read_bytes().decode(errors="replace")
                    kind = next((said for part, said in _KINDS.items() if part in words), None)
                    if kind is not None:
                        lines = (place / "status").read_text().splitlines()
                        (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
                        self._most[kind, int(place.name)] = int(peak)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
