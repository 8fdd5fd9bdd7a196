"""The tutorials run from top to bottom, each in a kernel of its own; no output is stored."""

import resource
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIALS = sorted((Path(__file__).resolve().parents[1] / "docs" / "tutorials").glob("*.ipynb"))
QUICK = 60  # seconds of a processor


def test_the_six_tutorials_are_there():
    assert len(TUTORIALS) == 6


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_stored_without_output(path):
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].source.startswith("# ")
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert any("assert " in cell.source for cell in code), "it says nothing that could be wrong"
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.long
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path, tmp_path, monkeypatch):
    # The service of W&B that other tests of this process had is not the kernel's.
    monkeypatch.delenv("WANDB_SERVICE", raising=False)
    book = nbformat.read(path, as_version=4)
    before = of_children()
    NotebookClient(book, timeout=10 * QUICK, resources={"metadata": {"path": tmp_path}}).execute()
    assert 0 < of_children() - before < QUICK
    assert not list(tmp_path.iterdir()), "it leaves files where it was opened"
