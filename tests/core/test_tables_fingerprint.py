"""A result that is kept on disk is made anew when the code that made it has changed."""

import importlib
import sys
from pathlib import Path

import pytest

from coterie.core.tables.study import code_version

FILES = ("model.py", "tables/references.py", "tables/study.py", "tables/result.py")
APART = ("tables/main_table.py", "cli/train.py", "bench/loop.py")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of a paper, with the folders that packages have."""
    root = tmp_path / "toypaper"
    for name in (*FILES, *APART):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("RATE = 1\n")
    (root / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield root
    sys.modules.pop("toypaper", None)


def version() -> str:
    return code_version.__wrapped__("toypaper")


@pytest.mark.parametrize("name", FILES)
def test_what_makes_a_result_counts(package, name):
    """What trains and ranks for tables too, as a central model or popularity."""
    before = version()
    assert version() == before
    (package / name).write_text("RATE = 2\n")
    assert version() != before


@pytest.mark.parametrize("name", APART)
def test_what_lays_it_out_does_not(package, name):
    before = version()
    (package / name).write_text("RATE = 2\n")
    assert version() == before


@pytest.mark.parametrize("paper", ["assisted", "continual", "llm", "msmt", "page"])
def test_tables_of_the_papers_train_in_files_that_count(paper):
    """No other file of a paper's tables follows a run or fits a model whose result is kept."""
    folder = Path(importlib.import_module(f"coterie.{paper}").__path__[0], "tables")
    training = {
        file.name
        for file in folder.glob("*.py")
        if any(word in file.read_text() for word in ("follow(", "followed(", "fit_pairwise("))
    }
    assert training
    assert training <= {"study.py", "references.py"}
