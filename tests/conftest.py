"""Fixtures shared by all tests."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from coterie.core.callbacks import dashboard
from coterie.core.metrics.monitor import Monitor
from coterie.core.registry.papers import Paper

# What changes torch for a whole process, and so is never imported here.
collect_ignore = ["far_device.py", "processors"]

# The same examples in every run, and no deadline, since machines are busy;
# HYPOTHESIS_PROFILE=default searches further.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_sessionstart() -> None:
    """Look for no garbage while ten thousand tests are collected: 15 s would find none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage again, but never more among the tests themselves, which live to the end."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the public data sets; skips where they are absent."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("COTERIE_DATA", beside))
    if not (root / "ml-100k" / "u.data").is_file():
        pytest.skip(f"needs the public data sets: set COTERIE_DATA (looked in {root})")
    return root


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _pictures_drawn_once() -> Iterator[None]:
    """Draw the curves of a run, but not again for a run of the same panels and blocks.

    A picture takes a second, half of what a small run takes. Tests of pictures call `render`; runs
    in processes of their own draw.
    """
    render, drawn = dashboard.render, dict[object, bytes]()

    def once(
        run_folder: Path,
        paper: Paper | None = None,
        monitor: Monitor | None = None,
        title: str = "",
    ) -> list[Path]:
        table = dashboard._metrics(run_folder)
        panels = [
            (panel.title, tuple(dashboard._measured(table, panel)))
            for panel in dashboard._panels(table, paper, monitor)
        ]
        known = paper.name if paper else None, monitor, tuple(panels), len(set(table["block"]))
        if known not in drawn:
            files = render(run_folder, paper, monitor, title)
            drawn[known] = files[0].read_bytes() if files else b""
            return files
        path = run_folder / "curves.png"
        if drawn[known]:
            path.write_bytes(drawn[known])
        return [path] if drawn[known] else []

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dashboard, "render", once)
        yield
