"""Fixtures of PPLR's tests."""

from collections.abc import Iterator

import pytest
from tests.llm.split_process import Server


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Server processes that a test starts; killed when it ends."""
    started: list[Server] = []
    yield started
    for server in started:
        server.kill()
