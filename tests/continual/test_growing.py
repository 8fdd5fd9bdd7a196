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
    numbers,
    parts_of,
    rows_in_time,
    train,
    written,
)

import coterie
from coterie.continual.algorithm import F3CRec
from coterie.continual.experiment import Experiment
from coterie.continual.settings import Settings, StreamSettings
from coterie.core.cli.main import main
from coterie.core.run.runfolder import RunFolder
from coterie.core.run.serving import evaluate, recommend

pytestmark = pytest.mark.long

LEFT_OUT = ["--method", "f3crec", *ALL_KEPT]
METHODS = {
    "ft": ["--method", "ft"],
    "spp": ["--method", "spp", "--spp.n_slow", "2", "--spp.n_fast", "2"],
    "rlp2": ["--method", "rlp2", "--rlp2.capacity", "12", "--model.name", "pfedrec"],
}
NOISE = ["--privacy.at", "server", "--privacy.noise", "gaussian", "--privacy.scale", "0.1"]
NOISE += ["--privacy.clip", "1"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return written(tmp_path_factory.mktemp("files"))


def started_with_all(files, out, *flags):
    first, second, third, _ = files
    return train(out, "started", *flags, "--data.more", f"[{second},{third}]", data=first)


def on_one_file(files, out, *flags):
    return train(out, "alone", *flags, data=files[3], total=sum(SIZES))


def grown_twice(files, out, *flags):
    first, second, third, _ = files
    run = train(out, "grown", *flags, data=first)
    assert grow(out, "grown", second) == grow(out, "grown", third) == 0
    return run


@pytest.fixture(scope="module")
def left_out(files, tmp_path_factory):
    """A run of F³CRec with lists of all blocks: grown twice, and with all files from the start."""
    out = tmp_path_factory.mktemp("left-out")
    return grown_twice(files, out, *LEFT_OUT), started_with_all(files, out, *LEFT_OUT)


def test_a_grown_run_is_the_run_that_had_all_from_the_start(left_out):
    grown, started = left_out
    assert differing(left(grown), left(started)) == []
    both = [json.loads((run / "summary.json").read_text()) for run in left_out]
    for name in ("rounds", "metrics", "up_bytes", "down_bytes", "data_digest", "left_out", "notes"):
        assert both[0][name] == both[1][name], name
    assert (grown / "ledger.json").read_text() == (started / "ledger.json").read_text()
    about = [json.loads((run / "about.json").read_text()) for run in left_out]
    assert about[0]["digest"] == about[1]["digest"]
    assert about[0]["blocks"] == about[1]["blocks"]
    measured = [np.load(run / "clients.npz") for run in left_out]
    assert measured[0].files == measured[1].files
    for name in measured[0].files:
        np.testing.assert_array_equal(measured[0][name], measured[1][name])


def test_noise_of_the_server_does_not_depend_on_when_files_came(files, tmp_path):
    """Its secret is of the settings that a run has from its first round on."""
    runs = grown_twice(files, tmp_path, *NOISE), started_with_all(files, tmp_path, *NOISE)
    assert differing(*map(left, runs)) == []


@pytest.mark.parametrize("method", METHODS)
def test_files_are_blocks_as_if_one_file_had_been_cut_there(files, tmp_path, method):
    """Numbers of users and items, splits, blocks and training; the whole file knows no growth."""
    grown = grown_twice(files, tmp_path, *METHODS[method])
    alone = on_one_file(files, tmp_path, *METHODS[method])
    assert differing(left(grown), left(alone)) == []
    assert numbers(grown)[-1][1] == ("block", "4")


def test_so_they_are_with_replay_and_lists_of_what_is_left_out(files, left_out, tmp_path):
    alone = on_one_file(files, tmp_path, *LEFT_OUT)
    assert differing(left(left_out[0]), left(alone)) == []
    noted = left(alone)["run.store.rows.left_out"]
    assert noted.shape[1] == 5 * 4
    assert bool((noted[:, 3 * 4 :] >= 0).any())


@pytest.mark.parametrize("moment", ["between", "block"])
def test_a_growth_that_is_cut_off_goes_on_to_the_same_bits(
    files, left_out, tmp_path, monkeypatch, moment
):
    """Cut off before the new settings are written, or in the last round of the new block."""
    first, second, third, _ = files
    run = train(tmp_path, "cut", *LEFT_OUT, data=first)
    end_block = F3CRec.end_block

    def stop(*_, **__):
        raise KeyboardInterrupt

    def stop_in_new_block(self, state, *words):
        return stop() if state.block == 3 else end_block(self, state, *words)

    with monkeypatch.context() as patch:
        if moment == "between":
            patch.setattr(RunFolder, "for_settings", stop)
        else:
            patch.setattr(F3CRec, "end_block", stop_in_new_block)
        assert grow(tmp_path, "cut", second) == 130
    assert not (run / "summary.json").exists()
    assert len(numbers(run)) == (6 if moment == "between" else 7)
    assert grow(tmp_path, "cut", second) == grow(tmp_path, "cut", third) == 0
    assert differing(left(run), left(left_out[0])) == []


def test_an_unfinished_run_may_grow(files, left_out, tmp_path):
    first, second, third, _ = files
    run = train(tmp_path, "early", *LEFT_OUT, "--trainer.max_epochs", "3", data=first)
    assert len(numbers(run)) == 3
    assert grow(tmp_path, "early", second, "--trainer.max_epochs", "4") == 0
    assert not (run / "summary.json").exists()
    assert grow(tmp_path, "early", third, "--trainer.max_epochs", "-1") == 0
    assert differing(left(run), left(left_out[0])) == []


def test_a_run_of_before_there_was_the_setting_grows(files, left_out, tmp_path):
    first, second, third, _ = files
    run = train(tmp_path, "old", *LEFT_OUT, data=first)
    config = run / "config.yaml"
    assert "  more: []\n" in config.read_text()
    config.write_text(config.read_text().replace("  more: []\n", ""))
    assert grow(tmp_path, "old", second) == grow(tmp_path, "old", third) == 0
    assert differing(left(run), left(left_out[0])) == []


def test_files_may_be_named_where_they_are(files, left_out, tmp_path, monkeypatch):
    """A run is resumed and looked into from anywhere."""
    first, second, third, _ = files
    monkeypatch.chdir(first.parent)
    more = ["--data.more", f"[{second.name}]"]
    run = train(tmp_path, "near", *LEFT_OUT, *more, data=first.name)
    assert grow(tmp_path, "near", third.name) == 0
    monkeypatch.chdir(tmp_path)
    assert evaluate(run) == evaluate(left_out[0])
    assert differing(left(run), left(left_out[0])) == []


def test_the_papers_averages_are_not_of_more_blocks():
    def known(**data):
        return Experiment(Settings(data=StreamSettings(name="ml-100k", **data))).reference()

    assert known(more=("july.csv",)).items() < known().items()
    assert not any("average" in name for name in known(more=("july.csv",)))


def test_a_run_grows_from_python(files, left_out, tmp_path):
    first, second, third, _ = files
    train(tmp_path, "py", *LEFT_OUT, data=first)
    run = coterie.load(tmp_path / "f3crec" / "py").resume(data=second, quiet=True)
    run = run.resume(data={"path": third}, quiet=True)
    assert differing(left(run.folder), left(left_out[0])) == []


def test_what_looks_into_a_run_knows_its_new_users_and_items(left_out, tmp_path, capsys):
    grown, _ = left_out
    first, *later = parts_of(rows_in_time())
    users, items = ({row[place] for row in first} for place in (0, 1))
    newcomer = next(user for user, _, _ in later[1] if user not in users)
    rows, _ = recommend(grown, user=newcomer, top=200)
    found = {row["item"] for row in rows}
    everything = {item for part in (first, *later) for _, item, _ in part}
    had = {item for part in later for user, item, _ in part if user == newcomer}
    assert found == everything - had
    assert found - items
    summary = json.loads((grown / "summary.json").read_text())["metrics"]
    measured = evaluate(grown)
    assert measured.keys() > {"test/block4/ndcg@5"}
    assert measured == {name: summary[name] for name in measured}
    capsys.readouterr()
    for round_, block in ((2, 0), (7, 3), (10, 4)):
        ids = coterie.load(grown)._open()[0].blocks[block].ids
        asked = ["replay", str(grown), "--round", str(round_), "--client", str(int(ids[0]))]
        assert main([*asked, "--json"]) == 0
        seen = json.loads(capsys.readouterr().out)
        assert (seen["block"], seen["matches"]) == (block, True)
    assert main(["report", str(grown), "--out", str(tmp_path / "report.html")]) == 0
    assert "block4" in (tmp_path / "report.html").read_text()
