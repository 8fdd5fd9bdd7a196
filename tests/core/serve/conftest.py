"""A small run, and the application that serves it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.continual.settings import ModelSettings, ReplaySettings, Settings
from coterie.core.registry.papers import find_paper
from coterie.core.serve.metrics import Metrics
from coterie.core.serve.opened import OpenedRun
from coterie.core.settings.sections import LoggerSettings, RunSettings
from coterie.core.training.train import train


def trained(out: Path, rounds: int) -> Path:
    settings = Settings(
        rounds=rounds,
        model=ModelSettings(dim=4),
        replay=ReplaySettings(top_n=10),
        logger=LoggerSettings(wandb="off"),
        run=RunSettings(out=str(out), name="small", progress=False),
    )
    return train(find_paper("f3crec"), settings)


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A run of one round a block; not to be written into."""
    return trained(tmp_path_factory.mktemp("served"), 1)


@pytest.fixture(scope="session")
def newer(tmp_path_factory) -> Path:
    """The checkpoint of the same run after two rounds a block."""
    return trained(tmp_path_factory.mktemp("newer"), 2) / "checkpoints" / "last.ckpt"


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    """The same run, to be written into."""
    return Path(shutil.copytree(folder, tmp_path / "f3crec" / folder.name))


@pytest.fixture(scope="session")
def opened(folder) -> Iterator[OpenedRun]:
    """The run, opened to be served."""
    run = OpenedRun(folder, Metrics())
    yield run
    run.close()
