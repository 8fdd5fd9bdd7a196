"""Works that take turns, the rows of a benchmark, and processes of their own."""

import os

import pytest
import torch

from benchmarks.core import timing
from benchmarks.core.machine import Limits, nbytes
from benchmarks.core.timing import in_a_process, in_turns, in_two_processes, row
from coterie.core.errors import UserError
from coterie.core.tables.stopwatch import one_thread


def test_all_take_turns_and_the_first_one_warms_up():
    seen, now = [], iter([0.0, 9.0, 9.0, 9.5, 10.0, 10.001, 11.0, 11.002])
    found = in_turns(
        {"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 1, lambda: next(now)
    )
    assert seen == ["a", "b", "a", "b"]
    assert found == {"a": pytest.approx([1.0]), "b": pytest.approx([2.0])}  # milliseconds


def test_a_ratio_is_a_speed_up_or_a_share():
    assert row("x", "ms", 2.0, 8.0)["ratio"] == 4
    assert row("x", "ms", 2.0, 8.0, share=True)["ratio"] == 0.25
    assert row("x", "ms", None, 8.0)["ratio"] is None
    assert list(row("x", "ms", 2.0)) == [
        *("name", "unit", "ours", "reference", "ratio", "max_abs_diff")
    ]


def test_of_two_processes_the_fastest_turn_is_compared_with_that_of_one(monkeypatch):
    took = iter([50.0, 50.0, 3.0, 9.0, 7.0, 1.5])  # a turn to warm up, then one and two by turns
    clock = (time for seconds in took for time in (0.0, seconds))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    found = in_two_processes("a round", "ms", lambda: None, lambda: None, 0.5, turns=2)
    assert found == {
        "name": "a round; two processes, one",
        "unit": "ms",
        "ours": pytest.approx(1500.0),
        "reference": pytest.approx(3000.0),
        "ratio": pytest.approx(2.0),
        "max_abs_diff": 0.5,
    }


def test_limits_are_milliseconds():
    limits = Limits(flops=2e9, bandwidth=4e9)
    products, moves = limits.products("products at", 1e9, 1000.0), limits.moves("moved at", 1e9)
    assert (products["name"], products["reference"]) == ("  products at 2 GFLOP/s", 500.0)
    assert products["ratio"] == 0.5
    assert (moves["name"], moves["reference"]) == ("  moved at 4.0 GB/s", 250.0)


def test_threads_are_as_before_even_after_a_failure():
    before, seen = torch.get_num_threads(), []

    def fail():
        with one_thread():
            seen.append(torch.get_num_threads())
            raise InterruptedError

    torch.set_num_threads(2)
    with pytest.raises(InterruptedError):
        fail()
    assert (seen, torch.get_num_threads()) == ([1], 2)
    torch.set_num_threads(before)


def test_bytes_of_a_tree_are_those_of_its_tensors():
    assert nbytes({"a": torch.zeros(3), "b": [torch.zeros(2, dtype=torch.int64)]}) == 12 + 16


def test_a_function_runs_in_another_process():
    assert in_a_process("os:getpid", "x") != os.getpid()
    assert in_a_process("math:hypot", "x", 3, 4) == 5.0


def test_a_failure_there_is_one_clear_line():
    with pytest.raises(UserError, match=r"measuring 3 clients failed: .*no_such_module"):
        in_a_process("no_such_module:f", "3 clients")
