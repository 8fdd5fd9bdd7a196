"""Disks that are full for a while, in the middle of a run: at a node, and at the server."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.flower.clusters import bits, deployed, ended, requests, undisturbed, when

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs tmpfs"),
]
WORDS = ["f3crec", "--rounds", "1", "--participation", "0.5", "--model.dim", "4"]
WORDS += ["--data.fractions", "[0.8]"]
FULL = 20.0  # seconds, in which a round could have been done
SIZE = 200 << 20


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """Put a folder on a small disk of its own."""
    aside = folder.with_name(f"{folder.name}-before")
    folder.rename(aside)
    folder.mkdir(mode=0o700)
    words = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "none", str(folder)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        yield
    finally:
        shutil.rmtree(aside)
        shutil.copytree(folder, aside)
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()
        aside.rename(folder)


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


def fill(folder: Path, lifted: list[float]) -> None:
    """Fill the disk of a folder, and make room again after a while."""

    def hold() -> None:
        with full(folder):
            time.sleep(FULL)
            lifted.append(time.time())

    threading.Thread(target=hold).start()


@pytest.mark.parametrize("step", ["update", "end_block"])
@pytest.mark.parametrize("whose", ["trial/nodes/node-0", "server"])
def test_a_full_disk_changes_nothing(whose: str, step: str, tmp_path: Path) -> None:
    root, lifted = tmp_path / "d", list[float]()
    nodes = deployed(root, WORDS)

    def is_answered() -> bool:
        return any(line.step == step and line.turn == 1 for line in requests(nodes[1:]))

    with disk(root / whose):
        with when(is_answered, lambda: fill(root / whose, lifted)) as done:
            state = ended(root, nodes)
        assert done
        assert lifted
        assert state["state"] == "finished", state
        assert bits(root, state) == undisturbed(root)
