"""What nobody could measure is no number: not 0, and no round is the best by it."""

import copy
import csv
import json
import math
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.federation.selection import unmeasured
from coterie.core.metrics.clients import mean_of_known, worst_decile
from coterie.core.metrics.monitor import Monitor
from coterie.core.protocol.journal import Journal
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.checkpoint import LAST, read_checkpoint
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure

ROUNDS = 4
FLAGS = ["--data.min_interactions=1", "--replay.top_n=5", "--model.dim=4", f"--rounds={ROUNDS}"]
FLAGS += ["--patience=2", "--logger.wandb=off", "--run.progress=false"]


def rows_of(later):
    """Rows in order of time: eight users with ten items, then ``later`` blocks by (users, each)."""
    rows = [(f"u{user}", f"i{(3 * user + n) % 24}") for user in range(8) for n in range(10)]
    for block, (users, each) in enumerate(later):
        rows += [(f"b{block}u{u}", f"i{(u + n) % 24}") for u in range(users) for n in range(each)]
    return rows


def written(path, rows):
    lines = [f"{user},{item},{time}" for time, (user, item) in enumerate(rows)]
    path.write_text("\n".join(["user,item,time", *lines, ""]))
    return path


def flags_of(folder, later, *more):
    """A stream of one base block and as many equal blocks as are in ``later``."""
    rows = rows_of(later)
    base = 80 / len(rows)
    file = written(folder / "own.csv", rows)
    parts = [base, *([(1 - base) / len(later)] * (len(later) - 1))]
    given = ",".join(str(part) for part in parts)
    return ["--data", str(file), f"--data.fractions=[{given}]", *FLAGS, *more]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run by the command line: its folder and what it printed.

    Users of one row each are the second block: it is trained on, and nothing is left to measure.
    """
    folder, out = tmp_path_factory.mktemp("trained"), StringIO()
    flags = [*flags_of(folder, [(20, 1), (4, 5)]), "--out", str(folder)]
    with redirect_stdout(out):
        assert main(["train", "f3crec", *flags]) == 0
    [run] = (folder / "f3crec").iterdir()
    return run, " ".join(out.getvalue().split())


def made(folder, later, *more):
    paper = find_paper("f3crec")
    experiment = load(paper.experiment)(configure(paper, flags_of(folder, later, *more)).settings)
    return experiment, FederatedRun(experiment.federation())


def new_run(folder, later, *more):
    return made(folder, later, *more)[1]


def test_a_block_in_which_nobody_is_measured_has_no_numbers(trained):
    folder, out = trained
    summary = json.loads((folder / "summary.json").read_text())
    metrics = summary["metrics"]
    with (folder / "metrics.csv").open() as file:
        rounds = list(csv.DictReader(file))
    assert not {n for n in metrics if "block1" in n} - {"test/block1/last_round"}
    assert metrics["test/block1/last_round"] == ROUNDS  # none was waited for in vain
    assert metrics["test/block2/best_round"] >= 1
    for name in ("ndcg@20", "recall@20"):
        assert metrics[f"test/average/{name}"] == metrics[f"test/block2/{name}"]
    in_block = [row for row in rounds if row["block"] == "1"]
    assert len(in_block) == ROUNDS
    assert all(row["fed/loss"] for row in in_block)
    assert {row[n] for row in in_block for n in row if n.startswith("eval/")} == {""}
    for said in (
        "nothing to test in block 1: not measured, averages are over the others",
        "eval/ndcg@20 was not measured in block 1, as nobody had validation data there",
    ):
        assert said in out
        assert any(said in note for note in summary["notes"])
    assert "test/block1/ndcg@20" not in out


def test_a_stream_of_which_no_later_block_is_measured_has_no_average(tmp_path):
    experiment, run = made(tmp_path, [(20, 1)])
    while not run.finished:
        run.advance()
    metrics = experiment.final_metrics(run)
    assert not [name for name in metrics if "average" in name]
    assert metrics["test/block0/ndcg@20"] > 0
    assert "nothing to test in block 1" in experiment.notes(run)[0]


def test_the_last_round_is_what_is_kept_served_and_gone_on_from(tmp_path):
    run = new_run(tmp_path, [(20, 1)])
    server, kept = run.federation.server, []
    keep = server.keep
    server.keep = lambda state, cohort: (
        kept.append((state.block, state.round)) or keep(state, cohort)
    )
    while not run.finished:
        run.advance()
    state = run.server_state
    assert (state.chosen.round, state.round) == (0, ROUNDS)
    assert math.isnan(state.chosen.score)
    assert torch.equal(state.best, state.items)
    assert [round_ for block, round_ in kept if block == 1] == [ROUNDS]  # by the clients, too
    rows = run.store.to_plain()["rows"]
    assert all(torch.equal(rows["params"][name], best) for name, best in rows["best"].items())


def test_a_block_of_one_user_is_measured_by_it(tmp_path):
    run = new_run(tmp_path, [(1, 20)], "--validation.clients=1")
    while not run.finished:
        run.advance()
    assert "test/block1/best_round" in run.results
    ids, values = run.client_results["test/ndcg@20"]
    assert len(ids) == 1
    assert run.results["test/block1/ndcg@20"] == float(values[0])


def test_what_opens_such_a_run_goes_through(trained, capsys):
    assert main(["evaluate", "--run", str(trained[0])]) == 0
    assert "nan" not in capsys.readouterr().out.lower()
    assert main(["recommend", "--user", "b0u3", "--run", str(trained[0])]) == 0


# The history of a run.


def test_the_history_is_of_all_rounds_and_a_resumed_run_has_it_too(tmp_path):
    whole, noted = new_run(tmp_path, [(4, 5), (4, 5)]), []
    saved = None
    while not whole.finished:
        whole.advance()
        noted.append((whole.block, whole.journal.scalars["fed/loss"]))
        assert len(whole.history) == whole.round
        assert len(whole.block_history) == whole.block_round
        if whole.round == 6:
            saved = copy.deepcopy(whole.to_plain())
    assert [row["fed/loss"] for row in whole.history] == [loss for _, loss in noted]
    blocks = [block for block, _ in noted]
    assert sorted(set(blocks)) == [0, 1, 2]
    last = blocks.index(2)
    assert whole.block_history == whole.history[last:]
    again = new_run(tmp_path, [(4, 5), (4, 5)])
    again.load_plain(copy.deepcopy(saved))
    while not again.finished:
        again.advance()
    assert again.history == whole.history
    # Checkpoints of before have the rounds of the open block alone, and go on to the same end.
    older = new_run(tmp_path, [(4, 5), (4, 5)])
    older.load_plain(saved | {"history": saved["history"][-saved["block_round"] :]})
    while not older.finished:
        older.advance()
    assert older.results == whole.results
    assert older.history == whole.history[6 - saved["block_round"] :]


def test_the_last_checkpoint_has_the_whole_history(trained):
    saved = read_checkpoint(trained[0] / "checkpoints" / LAST)["federation"]
    with (trained[0] / "metrics.csv").open() as file:
        losses = [float(row["fed/loss"]) for row in csv.DictReader(file)]
    assert len(losses) == saved["round"]
    assert [row["fed/loss"] for row in saved["history"]] == losses


# The parts.


def test_means_and_worst_tenths_of_nobody_are_nan_and_stay_out_of_the_journal():
    nobody, nothing = torch.full((3,), math.nan), torch.empty(0)
    for values in (nobody, nothing):
        assert math.isnan(mean_of_known(values))
        assert math.isnan(worst_decile(values))
    journal = Journal()
    assert not journal.known("eval/auc", mean_of_known(nobody))
    assert not journal.known("eval/loss", torch.tensor(math.nan))
    assert journal.known("eval/recall", 0.0)
    assert journal.scalars == {"eval/recall": 0.0}


@pytest.mark.parametrize(
    ("history", "results", "said"),
    [
        ([{"eval/auc": 0.5}], {"test/best_round": 1.0}, []),
        ([{"fed/loss": 0.5}], {"test/last_round": 1.0}, ["not measured in any round"]),
        ([], {}, ["not measured in any round"]),
        (
            [{"eval/auc": 0.5}],
            {"test/block1/last_round": 4.0, "test/block3/last_round": 4.0},
            ["not measured in block 1, 3"],
        ),
    ],
)
def test_what_is_said_of_rounds_that_were_not_measured(history, results, said):
    found = unmeasured(history, results, Monitor("eval/auc"))
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))
