"""The measurements of reading and cutting: pandas comes to the same, and a difference is seen."""

import pytest
import torch

from benchmarks.core.data import own_files
from coterie.core.registry.papers import load


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Measure in this process."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(own_files, "in_a_process", lambda name, what, *given: load(name)(*given))
    yield
    torch.set_num_threads(threads)


def test_pandas_comes_to_the_same():
    rows = list(own_files.measure(3_000, 30_000))
    assert [row["max_abs_diff"] for row in rows] == [0, 0, 0, 0, 0, None]
    assert all(row["ours"] >= 0 and row["peak MB"] > row["adds MB"] for row in rows)
    assert rows[0]["name"] == "own CSV, 3,000 rows, ids text"
    assert rows[2]["name"] == "k-core, 30,000 rows"


def test_a_difference_is_seen(monkeypatch):
    def of_more_rows(name, what, rows):
        return load(name)(rows + (1_000 if name.endswith("ours") else 0))

    monkeypatch.setattr(own_files, "in_a_process", of_more_rows)
    rows = list(own_files.cut(9_000))
    assert [row["max_abs_diff"] for row in rows] == [*[float("inf")] * 3, None]


def test_the_report_names_its_sizes():
    lines = list(own_files.report(2_000, 20_000))
    assert len(lines) == 6
    assert lines[1].startswith("own CSV, 2,000 rows, ids whole numbers: ours ")
