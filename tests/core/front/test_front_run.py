"""A run from Python: the numbers of the command line, as data frames."""

import csv
import json
import os
import random
import shutil
import signal
import threading
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch

import coterie
from coterie.core.cli.main import main
from coterie.core.errors import Interrupted
from coterie.core.kernels import switch
from coterie.core.run.driver import FederatedRun
from coterie.core.terminal import console

pytestmark = pytest.mark.long

SHORT = {"preset": "smoke", "logger": {"wandb": "off"}, "quiet": True}
FLAGS = ["--preset", "smoke", "--logger.wandb", "off"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder with two runs of F3CRec and PPLR: by Python as `py`, by the command line as `cli`."""
    folder = tmp_path_factory.mktemp("runs")
    for paper in ("f3crec", "pplr"):
        coterie.train(paper, out=folder, name="py", **SHORT)
        assert main(["train", paper, "--out", str(folder), "--run.name", "cli", *FLAGS]) == 0
    return folder


@pytest.fixture
def run(runs, tmp_path):
    """A copy of the run of F3CRec that a test may change."""
    folder = tmp_path / "f3crec" / "py"
    shutil.copytree(runs / "f3crec" / "py", folder)
    return coterie.load(folder)


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


# The same as the command line


@pytest.mark.parametrize("paper", ["f3crec", "pplr"])
def test_numbers_are_those_of_the_command_line(runs, paper):
    ours, theirs = coterie.load(runs / paper / "py"), runs / paper / "cli"
    assert ours.metrics == summary(theirs)["metrics"]
    with (theirs / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    history = ours.history
    assert list(history["round"]) == [int(row["round"]) for row in rows]
    assert list(history["block"]) == [int(row["block"]) for row in rows]
    for name in (each for each in history if not each.startswith("cost/seconds")):
        wanted = [float(row[name] or "nan") for row in rows]
        np.testing.assert_array_equal(history[name], wanted)


def test_a_run_of_the_command_line_is_loaded(runs):
    assert coterie.load(runs / "f3crec" / "cli").metrics == coterie.load(runs / "f3crec/py").metrics


@pytest.mark.parametrize("user", ["1", "271"])
def test_recommendations_are_those_of_the_command_line(runs, capsys, user):
    folder = runs / "f3crec" / "py"
    assert main(["recommend", "--run", str(folder), "--user", user, "--top", "4", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["recommendations"]
    found = coterie.load(folder).recommend(users=[int(user)], top=4)
    assert found.drop(columns="user").to_dict("records") == rows
    assert set(found["user"]) == {user}


@pytest.mark.parametrize("paper", ["f3crec", "pplr"])
def test_recommendations_to_everybody_are_those_of_the_command_line(runs, tmp_path, paper):
    folder, file = runs / paper / "py", tmp_path / "all.csv"
    assert main(["recommend", "--run", str(folder), "--all", "--out", str(file), "--top", "2"]) == 0
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = coterie.load(folder).recommend(top=2)
    wanted = pd.read_csv(file, dtype={"user": str, "item": str})
    pd.testing.assert_frame_equal(found.drop(columns="title"), wanted, check_dtype=False)
    assert found["user"].nunique() == (231 if paper == "pplr" else 299)
    counts = [str(one.message) for one in told if "users have no list" in str(one.message)]
    assert [text.split(", as")[0] for text in counts] == (
        ["68 of 299 users have no list"] if paper == "pplr" else []
    )


def test_a_history_is_read_as_the_file_of_the_command_line(runs, tmp_path, capsys):
    folder, file = runs / "f3crec" / "py", tmp_path / "new.csv"
    file.write_text("item,rating\n1,5\n5,0\n9,3\n")
    assert main(["recommend", "--run", str(folder), "--new-user", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = found["recommendations"]
    assert found["notes"][0].startswith("1 of 3 rows count as had, not as liked")
    run = coterie.load(folder)
    frame = pd.DataFrame({"item": [1, 5, 9], "rating": [5, 0, 3]})
    with pytest.warns(UserWarning, match="1 of 3 rows count as had, not as liked"):
        assert run.recommend_new(frame).drop(columns="user").to_dict("records") == rows
    with pytest.warns(UserWarning, match="1 of 3 rows"):
        assert run.recommend_new(file).drop(columns="user").to_dict("records") == rows


# Recommending


def test_histories_of_several_people(runs):
    run = coterie.load(runs / "f3crec" / "py")
    both = run.recommend_new({"ann": [1, "5"], "bob": ["7"]}, top=3)
    assert list(both["user"]) == ["ann"] * 3 + ["bob"] * 3
    ann = run.recommend_new(["1", "5"], top=3)
    assert list(both["item"][:3]) == list(ann["item"])
    frame = pd.DataFrame({"user": ["ann", "bob", "ann"], "item": ["1", "7", "5"]})
    pd.testing.assert_frame_equal(run.recommend_new(frame, top=3), both)
    assert set(ann["user"]) == {"new"}
    assert not {"1", "5"} & set(run.recommend_new(["1", "5"], top=50)["item"])


def test_titles_name_items_too(runs):
    run = coterie.load(runs / "f3crec" / "py")
    found = run.recommend(users="1", top=1)
    title, item = found["title"][0], found["item"][0]
    by_title = run.recommend_new(pd.DataFrame({"title": [title]}), top=3)
    pd.testing.assert_frame_equal(by_title, run.recommend_new([item], top=3))


def test_unknown_items_are_a_warning_and_only_unknown_ones_an_error(runs):
    run = coterie.load(runs / "f3crec" / "py")
    with pytest.warns(UserWarning, match="1 of 2 items unknown: nobody") as told:
        found = run.recommend_new(["1", "nobody"], top=3)
    assert told[0].filename == __file__
    pd.testing.assert_frame_equal(found, run.recommend_new(["1"], top=3))
    for wrong, why in [
        (["nobody"], "the history: none of its items is known"),
        ({"ann": ["nobody"]}, "the history of 'ann': none of its items is known"),
        ([], "the history is empty"),
        (7, "must be a list of ids of items, not 7"),
        ({"ann": "7"}, "the history of 'ann' must be a list of ids of items, not '7'"),
        (
            pd.DataFrame({"item": ["1", "2"], "user": ["ann", None]}),
            "the history has rows without a 'user'",
        ),
        (pd.DataFrame({"thing": ["1"]}), "the history has the columns thing: it needs one named"),
    ]:
        with pytest.raises(coterie.UserError, match=why):
            run.recommend_new(wrong)


def test_wrong_users_are_one_line(runs):
    run = coterie.load(runs / "f3crec" / "py")
    with pytest.raises(coterie.UserError, match="user 'zzz' is not in the run's data"):
        run.recommend(["1", "zzz"])
    with pytest.raises(coterie.UserError, match="'users' must be ids of users"):
        run.recommend(1.5)
    for top in (0, 1.5, True):
        with pytest.raises(coterie.UserError, match="'top' must be a whole number of at least 1"):
            run.recommend(top=top)
    none = run.recommend([])
    assert list(none.columns) == ["user", "rank", "item", "title", "score"]
    assert len(none) == 0


def test_users_who_took_no_part(runs):
    run = coterie.load(runs / "pplr" / "py")
    with pytest.warns(UserWarning, match="68 of 299 users have no list"):
        served = set(run.recommend(top=1)["user"])
    users = run._open()[0].interactions.user_names
    without = [name for name in users if name not in served]
    assert (len(users), len(without)) == (299, 68)
    with pytest.raises(coterie.UserError, match=f"2 of 2 users have no list, as '{without[0]}'"):
        run.recommend(without[:2])
    with pytest.warns(UserWarning, match=f"1 of 2 users have no list, as '{without[0]}'"):
        found = run.recommend([without[0], users[users.index(min(served))]], top=1)
    assert list(found["user"]) == [min(served)]


# What a run has


def test_tables_of_a_run(runs):
    run = coterie.load(str(runs / "f3crec" / "py"))
    ledger, crossed = run.ledger, summary(run.folder)
    assert ledger.groupby("direction")["bytes"].sum()["up"] == crossed["up_bytes"]
    history = run.history
    assert list(history["block"].unique()) == [0, 1, 2, 3]
    assert list(history["round"]) == list(range(1, 9))
    assert history["round"].dtype == history["block"].dtype == np.int64
    clients = run.clients
    newest = run.metrics["test/block3/ndcg@20"]
    assert clients["ndcg@20"].mean() == pytest.approx(newest)
    assert set(clients["user"]) <= set(run._open()[0].interactions.user_names)
    assert list(coterie.load(runs / "pplr" / "py").clients.columns)[:2] == ["client", "test_users"]
    assert run.evaluate()["test/block3/ndcg@20"] == pytest.approx(newest, rel=1e-5)
    with pytest.raises(coterie.UserError, match="split 'valid' cannot be measured again"):
        run.evaluate("valid")
    assert run.config == coterie.load(run.folder).config
    assert run.config.rounds == 2


def test_a_run_shows_itself(runs, drawn_anew):
    run = coterie.load(runs / "f3crec" / "py")
    lines = repr(run).splitlines()
    assert lines[0] == "f3crec: f3crec on sample, seed 0, finished"
    assert "  test/average/ndcg@20" in "\n".join(lines)
    assert lines[-1] == f"  in {run.folder}"
    assert "<table>" in run._repr_html_()
    figure = run.plot()
    assert "NDCG@20" in " ".join(ax.get_title("left") for ax in figure.axes)
    assert figure._repr_png_().startswith(b"\x89PNG")
    # As curves.png: the best rounds are marked, though they are read from files.
    titles = [ax.get_title("left") for ax in figure.axes]
    assert any(title.endswith("ring: best round of a block") for title in titles)
    assert "block 1" in " ".join(text.get_text() for text in figure.axes[0].texts)
    (run.folder / "about.json").write_text("[")
    with pytest.raises(coterie.UserError, match=r"about\.json is damaged"):
        run.plot()


def test_numbers_that_nobody_measured_are_nan(run):
    found = summary(run.folder)
    found["metrics"]["test/average/ndcg@20"] = None
    (run.folder / "summary.json").write_text(json.dumps(found))
    assert np.isnan(run.metrics["test/average/ndcg@20"])


def test_what_is_no_run_is_one_line(runs, tmp_path):
    with pytest.raises(coterie.UserError, match=r"there is no run .*: did you mean 'py'"):
        coterie.load(runs / "f3crec" / "pyy")
    with pytest.raises(
        coterie.UserError, match=r"is not the folder of a run: it has no config.yaml"
    ):
        coterie.load(tmp_path)
    for wrong in (None, 3):
        with pytest.raises(coterie.UserError, match=f"the path of its folder, not {wrong}"):
            coterie.load(wrong)
    with pytest.raises(coterie.UserError, match="a paper is called by its name, not None: f3crec"):
        coterie.train(None)


def test_users_and_histories_in_odd_forms(runs):
    run = coterie.load(runs / "f3crec" / "py")
    assert run.recommend(np.int64(1), top=2).equals(run.recommend("1", top=2))
    twice = pd.DataFrame([[1, 2]], columns=["item", "item"])
    with pytest.raises(coterie.UserError, match="the history has two columns 'item'"):
        run.recommend_new(twice)
    with pytest.raises(coterie.UserError, match="there are no histories"):
        run.recommend_new({})


def test_papers_that_classify_recommend_nothing(tmp_path):
    run = coterie.train("page", out=tmp_path, rounds=1, logger={"wandb": "off"}, quiet=True)
    for ask in (run.recommend, lambda: run.recommend_new(["1"])):
        with pytest.raises(
            coterie.UserError, match=r"^page classifies samples: there are no items"
        ):
            ask()
    assert len(run.clients) == 100


# Calls


def test_a_second_run_gets_a_number_and_a_name_is_taken_once(runs, tmp_path):
    one = coterie.train("f3crec", out=tmp_path, **SHORT)
    two = coterie.train("f3crec", out=tmp_path, **SHORT)
    assert two.folder.name == f"{one.folder.name}-2"
    with pytest.raises(
        coterie.UserError, match="holds a finished run: choose another name by name="
    ):
        coterie.train("f3crec", out=tmp_path, name=one.folder.name, **SHORT)
    again = coterie.train(one.paper, config=one.folder / "config.yaml", quiet=True)
    assert again.folder.name == f"{one.folder.name}-3"
    assert one.metrics == two.metrics == again.metrics


def test_an_object_of_settings_trains_the_same(runs, tmp_path):
    mine = coterie.settings("f3crec", preset="smoke", logger={"wandb": "off"})
    run = coterie.train("f3crec", mine, out=tmp_path, quiet=True)
    assert run.metrics == coterie.load(runs / "f3crec" / "py").metrics
    assert coterie.train("f3crec", run.config, seed=1, quiet=True).metrics != run.metrics


def test_quiet_prints_nothing_and_otherwise_the_tables_come(tmp_path, capsys):
    coterie.train("f3crec", out=tmp_path, **SHORT)
    assert capsys.readouterr() == ("", "")
    coterie.train("f3crec", out=tmp_path, **(SHORT | {"quiet": False}))
    assert "test/average/ndcg@20" in capsys.readouterr().out
    console().print("heard")
    assert capsys.readouterr().out == "heard\n"


def state():
    """What belongs to a process and not to a library."""
    return {
        "threads": torch.get_num_threads(),
        "format": torch.get_default_dtype(),
        "kernels": switch._allowed,
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),
        "python": random.getstate(),
        "environment": dict(os.environ),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
        "backend": matplotlib.rcParams._get("backend"),
        "folder": os.getcwd(),
        "gradients": torch.is_grad_enabled(),
        "warnings": list(warnings.filters),
    }


def test_the_process_is_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://nobody.has.this")
    torch.set_num_threads(2)
    switch.allow(False)
    try:
        before = state()
        assert before["threads"] == 2
        run = coterie.train("f3crec", out=tmp_path, **SHORT)
        assert state() == before
        run.recommend(["1"])
        run.recommend_new(["1"])
        run.evaluate()
        run.plot()
        assert state() == before
        with pytest.raises(coterie.UserError):
            coterie.train("f3crec", out=tmp_path, name=run.folder.name, **SHORT)
        assert state() == before
    finally:
        switch.allow(True)
        torch.set_num_threads(1)


def test_two_threads_train_as_one_does(runs, tmp_path):
    found, wanted = {}, coterie.load(runs / "f3crec" / "py").metrics
    options = {"seed0": {"engine": {"kernels": "off"}}, "again": {}}

    def train(name):
        run = coterie.train("f3crec", out=tmp_path, name=name, **SHORT, **options[name])
        found[name] = run.metrics

    threads = [threading.Thread(target=train, args=(name,)) for name in options]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found["again"] == wanted
    assert found["seed0"] == pytest.approx(wanted, rel=1e-4)
    assert switch._allowed


# Interrupted


@pytest.fixture
def stopped(monkeypatch):
    """Send the signal of Ctrl-C before a round of the run."""

    def at(number: int) -> None:
        advance = FederatedRun.advance

        def stopping(self):
            if self.round + 1 == number:
                monkeypatch.setattr(FederatedRun, "advance", advance)
                signal.raise_signal(signal.SIGINT)
            advance(self)

        monkeypatch.setattr(FederatedRun, "advance", stopping)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    yield at
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [1, 4])
def test_ctrl_c_returns_an_unfinished_run_that_goes_on(runs, tmp_path, stopped, number):
    stopped(number)
    since = "after its last whole round" if number > 1 else "from its beginning"
    with pytest.warns(UserWarning, match=f"is unfinished; its resume.. goes on {since}") as told:
        run = coterie.train("f3crec", out=tmp_path, **SHORT)
    assert told[-1].filename == __file__
    assert not run.finished
    done = number - 1
    assert list(run.history["round"]) == list(range(1, number))
    assert list(run.history.columns)[:2] == ["round", "block"]
    for ask in (lambda: run.metrics, lambda: run.ledger, lambda: run.clients, lambda: run.notes):
        with pytest.raises(
            coterie.UserError, match=rf"unfinished, {done} rounds? done: say run.re"
        ):
            ask()
    assert f"unfinished, {done} rounds done" in repr(run)
    if number == 1:
        with pytest.raises(coterie.UserError):
            run.plot()
        with pytest.raises(coterie.UserError, match="has no checkpoint"):
            run.recommend(["1"])
    else:
        assert len(run.recommend(["1"])) == 10
        assert run.evaluate()
    again = run.resume(quiet=True)
    assert again.folder == run.folder
    assert run.finished
    assert run.metrics == coterie.load(runs / "f3crec" / "py").metrics
    assert len(run.history) == 8
    by_now = coterie.load(run.folder).recommend(["1"])
    pd.testing.assert_frame_equal(run.recommend(["1"]), by_now)


def test_an_interruption_before_there_is_a_folder_goes_on_its_way(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("coterie.core.training.train.check", stop)
    with pytest.raises(KeyboardInterrupt) as caught:
        coterie.train("f3crec", out=tmp_path, **SHORT)
    assert not isinstance(caught.value, Interrupted)
    assert list(tmp_path.iterdir()) == []


def test_resuming_refuses_another_run(run, tmp_path):
    with pytest.raises(coterie.UserError, match=r"cannot resume .* with another 'seed'"):
        run.resume(seed=3, quiet=True)
    with pytest.raises(coterie.UserError, match="unknown setting 'rouns' in resume"):
        run.resume(rouns=3)
    with pytest.raises(coterie.UserError, match="goes on in its own folder"):
        run.resume(run={"name": "other"})
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run.folder, elsewhere)
    with pytest.raises(coterie.UserError, match="cannot go on there: move it to"):
        coterie.load(elsewhere).resume()


def test_a_run_of_one_block_gets_more_rounds(tmp_path):
    short = {"out": tmp_path, "logger": {"wandb": "off"}, "quiet": True}
    run = coterie.train("page", rounds=1, name="short", **short)
    longer = coterie.train("page", rounds=2, name="long", **short)
    assert run.resume(rounds=2, quiet=True).metrics == longer.metrics


def test_json_of_the_command_line_has_the_notes(tmp_path, capsys):
    words = ["train", "f3crec", "--preset", "smoke", "--out", str(tmp_path)]
    words += ["--validation.clients", "50"]  # which a note tells
    assert main([*words, "--run.name", "whole", "--json"]) == 0
    output = capsys.readouterr()
    found = json.loads(output.out)
    run = coterie.load(found["run"])
    assert run.folder == tmp_path / "f3crec" / "whole"
    assert (found["finished"], found["metrics"], found["notes"]) == (True, run.metrics, run.notes)
    assert run.notes
    assert f"Note: {run.notes[0].split()[0]}" in output.err  # what people read is not lost
    assert main(["evaluate", "--run", str(run.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == run.notes
    assert main([*words, "--json", "--run.name", "part", "--trainer.max_epochs", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"run": str(tmp_path / "f3crec" / "part"), "finished": False}
    assert main(["evaluate", "--run", found["run"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


@pytest.mark.parametrize("paper", ["f3crec", "pplr", "mtal", "page", "pf-msmtrec"])
@pytest.mark.parametrize("columns", [80, 60])
def test_help_has_no_line_that_is_too_wide(capsys, monkeypatch, paper, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["train", paper, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    wide = [line for line in lines if len(line) > columns and " " in line.strip()]
    assert not wide
    text = " ".join(" ".join(lines).split())
    assert "fedavg, fedprox" in text.replace(",", ", ").replace("  ", " ") or paper != "page"


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize(
    ("paper", "given"),
    [
        ("f3crec", {"validation": {"every": 50}}),
        ("pplr", {}),
        ("mtal", {"compare": False}),
        ("page", {"train": {"evaluate_every": 50}}),
        ("pf-msmtrec", {"compare": False, "train": {"evaluate_every": 50}}),
    ],
)
def test_runs_without_a_best_round_are_drawn(tmp_path, drawn_anew, paper, given):
    """Of a run that was stopped before anything was measured, too."""
    where = {"out": tmp_path, "quiet": True, "trainer": {"max_epochs": 1}}
    run = coterie.train(paper, preset="smoke", rounds=4, **where, **given)
    assert run.plot().axes
