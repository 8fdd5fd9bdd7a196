"""Fixtures shared by all tests."""

import gc
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import hypothesis
import pytest
import torch
from matplotlib.figure import Figure
from tests.short_runs import ShortRuns

from coterie.core import figures
from coterie.core.federation.selection import Selecting
from coterie.core.files import write_bytes

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
    """Look for garbage again: seldom, and never among the tests themselves."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the public data sets; skips where they are absent."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("COTERIE_DATA", beside))
    if not (root / "ml-100k" / "u.data").is_file():
        pytest.skip(f"needs the public data sets: set COTERIE_DATA (looked in {root})")
    return root


@pytest.fixture(scope="session")
def short_runs(tmp_path_factory: pytest.TempPathFactory) -> ShortRuns:
    """A short run of each paper, by its name."""
    return ShortRuns(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def rounds_alone() -> Iterator[None]:
    """What a block starts from does not compete: on made-up data it is often the best."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Selecting, "opened", lambda self, state, cohort: state)
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class DrawnOnce(Figure):
    """A figure that is drawn if none of its width and panels was: laying one out takes a second."""

    pictures: ClassVar[Path]

    def savefig(self, fname: Any, *, format: str, **options: Any) -> None:
        """Write the picture, or the first one that looks much like it."""
        picture = self.pictures / f"{len(self.axes)}.{format}"
        if not picture.exists():
            image = io.BytesIO()
            super().savefig(image, format=format, **options)
            write_bytes(picture, image.getvalue())
        fname.write(picture.read_bytes())


real_figure = figures._figure


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for what is made once in a run of the tests, whatever the number of workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(autouse=True, scope="session")
def _pictures_drawn_once(of_all_workers: Path) -> Iterator[None]:
    """Lay out few pictures; runs in processes of their own draw all."""
    DrawnOnce.pictures = of_all_workers / "pictures"
    DrawnOnce.pictures.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(figures, "_figure", lambda: DrawnOnce)
        yield


@pytest.fixture
def drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw every picture, as tests of pictures need it."""
    monkeypatch.setattr(figures, "_figure", real_figure)
