"""Disks that are full for a while, in the middle of a run: at a node, and at the server."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.flower.clusters import SHORT, bits, deployed, ended, requests, undisturbed, when

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs tmpfs"),
]
LATE = 100.0  # seconds within which something must have been written
SIZE = 200 << 20


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """Have a copy of a folder in its place, on a small disk of its own, until the block ends."""
    with tempfile.TemporaryDirectory() as name:
        content = shutil.copytree(folder, Path(name) / "content")
        words = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "none", str(folder)]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        try:
            shutil.copytree(content, folder, dirs_exist_ok=True)
            yield
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Leave no byte on the disk of a folder."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            for size in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass
            file.write(b"1")
    try:
        yield
    finally:
        filler.unlink()


@pytest.mark.parametrize("step", ["@enrol", "evaluate"])
def test_a_nodes_disk_that_is_full_for_a_while_changes_nothing(step: str, tmp_path: Path) -> None:
    """Its clients end, as they can keep nothing, and are started again until there is room."""
    root, ends = tmp_path / "d", list[int]()
    nodes = deployed(root, SHORT)

    def is_answered() -> bool:
        return any(line.step == step and line.turn == 1 for line in requests(nodes[:1]))

    def hold() -> None:
        with full(nodes[0]):
            until = time.monotonic() + LATE
            while not (ends and ends[-1] > 1) and time.monotonic() < until:
                time.sleep(0.1)
                said = (root / "trial" / "log" / f"{nodes[0].name}.log").read_text()
                ends.append(said.count("clients ended, and is started again"))

    with disk(nodes[0]):
        with when(is_answered, hold) as done:
            state = ended(root, nodes)
        assert done
        assert ends[-1] > 1
        assert state["state"] == "finished", state
        assert bits(root, state) == undisturbed(root)


def test_a_servers_disk_that_is_full_ends_the_run_which_goes_on_to_the_same_bits(
    tmp_path: Path,
) -> None:
    root, over = tmp_path / "d", threading.Event()
    nodes = deployed(root, SHORT)

    def is_answered() -> bool:
        return any(line.step == "update" and line.turn == 1 for line in requests(nodes))

    def hold() -> None:
        with full(root / "server"):
            over.wait(LATE)

    with disk(root / "server"):
        with when(is_answered, hold):
            state = ended(root, nodes)
            over.set()
        assert state["state"] == "failed"
        assert "no space left for" in state["error"]
        assert "free some, then go on" in state["error"]
        state = ended(root, nodes)
        assert state["state"] == "finished", state
        assert bits(root, state) == undisturbed(root)
