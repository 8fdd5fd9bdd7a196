"""Fixtures of PPLR's tests."""

import os
from collections.abc import Iterator

import pytest
from tests.llm.split_process import Server

from coterie.llm.experiment import Experiment

own_backbones_folder = Experiment._cache


@pytest.fixture(autouse=True, scope="session")
def _pretrained_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Pre-train a backbone once for all tests; all that it depends on names its file."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Experiment, "_cache", folder / "backbones")
        yield


@pytest.fixture
def own_backbones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pre-train for this test alone, as the tests of pre-trained files need it."""
    monkeypatch.setattr(Experiment, "_cache", own_backbones_folder)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Server processes that a test starts; killed when it ends."""
    started: list[Server] = []
    yield started
    for server in started:
        server.kill()
