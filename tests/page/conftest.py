"""Fixtures of the tests of PAGE."""

import os

import pytest


@pytest.fixture(scope="session")
def _decoded(tmp_path_factory):
    """A home for decoded pictures; one for all processes of a parallel run."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "decoded"


@pytest.fixture
def decoded_once(_decoded, monkeypatch):
    """Decode public pictures in the first test that reads them, and leave the user's home alone."""
    monkeypatch.setenv("HOME", str(_decoded))
