"""A run whose data grow by a file is the run that had all of them from the start, bit for bit."""

import json

import numpy as np
import pytest
from tests.continual.grown_runs import (
    ALL_KEPT,
    SIZES,
    differing,
    grow,
    left,
    train,
    written,
)

METHODS = {
    "ft": ["--method", "ft"],
    "f3crec": ["--method", "f3crec", *ALL_KEPT],
    "reg": ["--method", "reg"],
    "spp": ["--method", "spp", "--spp.n_slow", "2", "--spp.n_fast", "2"],
    "rlp2": ["--method", "rlp2", "--rlp2.capacity", "12", "--model.name", "pfedrec"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return written(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module", params=METHODS)
def runs(request, files, tmp_path_factory):
    """Runs of a method: grown twice, with all files from the start, and on one file of all rows."""
    out, flags = tmp_path_factory.mktemp(request.param), METHODS[request.param]
    first, second, third, whole = files
    grown = train(out, "grown", *flags, data=first)
    assert grow(out, "grown", second) == grow(out, "grown", third) == 0
    started = train(out, "started", *flags, "--data.more", f"[{second},{third}]", data=first)
    alone = train(out, "alone", *flags, data=whole, total=sum(SIZES))
    return grown, started, alone


def test_a_grown_run_is_the_run_that_had_all_from_the_start(runs):
    grown, started, _ = runs
    assert differing(left(grown), left(started)) == []
    both = [json.loads((run / "summary.json").read_text()) for run in (grown, started)]
    for name in ("rounds", "metrics", "up_bytes", "down_bytes", "data_digest", "left_out", "notes"):
        assert both[0][name] == both[1][name], name
    assert (grown / "ledger.json").read_text() == (started / "ledger.json").read_text()
    measured = [np.load(run / "clients.npz") for run in (grown, started)]
    assert measured[0].files == measured[1].files
    for name in measured[0].files:
        np.testing.assert_array_equal(measured[0][name], measured[1][name])


def test_files_are_blocks_as_if_one_file_had_been_cut_there(runs):
    """Numbers of users and items, splits, blocks and training: no path of the code is shared."""
    grown, _, alone = runs
    assert differing(left(grown), left(alone)) == []
