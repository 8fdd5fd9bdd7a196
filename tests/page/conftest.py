"""Fixtures of the tests of PAGE."""

import os

import pytest
from matplotlib.figure import Figure

from coterie.core import figures


@pytest.fixture(scope="session")
def _decoded(tmp_path_factory):
    """A home for decoded pictures; one for all processes of a parallel run."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "decoded"


@pytest.fixture
def decoded_once(_decoded, monkeypatch):
    """Decode public pictures in the first test that reads them, and leave the user's home alone."""
    monkeypatch.setenv("HOME", str(_decoded))


class Blank(Figure):
    """A figure that is made but not laid out."""

    def savefig(self, fname, **options):
        fname.write(b"no picture")


@pytest.fixture
def blank_pictures(monkeypatch):
    """For runs whose pictures nobody looks at: laying one out takes longer than a small run."""
    monkeypatch.setattr(figures, "_figure", lambda: Blank)
