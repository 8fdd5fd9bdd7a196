"""Jobs in worker processes; kept apart, as workers import this module."""

import gc
import multiprocessing
import os
import signal
import weakref

import pytest
import torch

from coterie.core.errors import UserError
from coterie.core.tables import jobs


def write_number(number, path):
    path.write_text(str(number))


def write_sum(argument, path):
    number, needed = argument
    path.write_text(str(number + int(needed.read_text())))


def refuse(argument, path):
    raise UserError("reg.strength 9 diverges")


def write_product(numbers, path):
    path.write_text(str(torch.tensor(numbers).prod().item()))


def die(argument, path):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
def test_jobs_run_after_what_they_need_and_only_once(tmp_path, workers):
    base = jobs.Job(tmp_path / "base", write_number, 1)
    made = [jobs.Job(tmp_path / f"sum{i}", write_sum, (i, base.path), needs=base) for i in range(3)]
    made[0].path.write_text("kept")
    jobs.run_jobs([*made, made[1]], workers, "sums", progress=False)
    assert [job.path.read_text() for job in made] == ["kept", "2", "3"]


@pytest.fixture
def forked(monkeypatch):
    """Workers are forks of a process that has imported torch; its import takes longer than they."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    monkeypatch.setattr(jobs.multiprocessing, "get_context", lambda _: server)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("work", "message"), [(refuse, "diverges"), (die, "was killed")])
def test_a_job_that_fails_ends_the_table_in_one_line(tmp_path, work, message):
    with pytest.raises(UserError, match=message):
        jobs.run_jobs([jobs.Job(tmp_path / "x", work, None)], 1, "x", progress=False)


@pytest.mark.usefixtures("forked")
def test_workers_take_numbers_too_small_for_the_processor_as_zero(tmp_path):
    made = [jobs.Job(tmp_path / "tiny", write_product, (1e-25, 1e-15))]
    made += [jobs.Job(tmp_path / "small", write_product, (1e-25, 1e-12))]
    jobs.run_jobs(made, 1, "products", progress=False)
    tiny, small = (float(job.path.read_text()) for job in made)
    assert tiny == 0.0
    assert small == pytest.approx(1e-37)


_runs = []


class Run:
    """Part of a cycle, as a Trainer is."""

    def __init__(self):
        self.own = self


def count_earlier(_, path):
    gc.disable()  # else Python may collect on its own
    path.write_text(str(sum(one() is not None for one in _runs)))
    _runs.append(weakref.ref(Run()))


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_job_leaves_nothing_in_memory(tmp_path, workers):
    made = [jobs.Job(tmp_path / str(number), count_earlier, None) for number in range(3)]
    try:
        jobs.run_jobs(made, workers, "runs", progress=False)
    finally:
        gc.enable()
        _runs.clear()
    assert [job.path.read_text() for job in made] == ["0", "0", "0"]
