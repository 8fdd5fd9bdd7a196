"""Fixtures of PPLR's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.llm.split_process import Server

from coterie.llm.experiment import Experiment

own_backbones_folder = Experiment._cache


@pytest.fixture(autouse=True, scope="session")
def _pretrained_once(of_all_workers: Path) -> Iterator[None]:
    """Pre-train a backbone once for all tests; all that it depends on names its file."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Experiment, "_cache", of_all_workers / "backbones")
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
