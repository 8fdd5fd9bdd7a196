"""Fixtures of PPLR's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.llm.split_process import Server
from tests.llm.tiny_encoder import folder

from coterie.llm.experiment import Experiment
from coterie.llm.settings import Settings

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


@pytest.fixture(scope="session")
def sample_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a tiny encoder that knows the words of the sample's titles."""
    titles = Experiment(Settings()).data.catalogue.require_titles()
    words = sorted({word for title in titles for word in title.split()})
    return str(folder(tmp_path_factory.mktemp("encoder") / "bert", words=words))


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Server processes that a test starts; killed when it ends."""
    started: list[Server] = []
    yield started
    for server in started:
        server.kill()
