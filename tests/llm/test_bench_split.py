"""The benchmark of split training measures the same model three times."""

import multiprocessing

import pytest
import torch
from tests.llm.split_process import processes

from benchmarks.llm.federation import Shape
from benchmarks.llm.split import split
from coterie.llm.backbone_settings import LoraSettings


def test_rows_and_equal_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = {"spawn": processes()}  # where a new process has not to import torch first
    monkeypatch.setattr(multiprocessing, "get_context", imported.__getitem__)
    threads = torch.get_num_threads()
    lora = LoraSettings(dropout=0.0)
    rows = list(split({1: Shape(3, 32, batch=2, history=6, n_items=50, lora=lora)}, turns=2))
    assert [row["name"].split(",")[0] for row in rows] == [
        "split step in this process",
        "split step over gRPC",
        "split step over gRPC",
    ]
    for row in rows:
        assert row["ratio"] == row["ours"] / row["reference"] > 0
    assert rows[0]["max_abs_diff"] == rows[1]["max_abs_diff"] == 0
    assert rows[2]["max_abs_diff"] < 1e-2
    assert torch.get_num_threads() == threads
