"""What cannot be added to a run is refused in one line, and the run stays as it was."""

import random

import pytest
from tests.continual.grown_runs import (
    files_in,
    grow,
    parts_of,
    rows_in_time,
    train,
    where,
    write,
    written,
)

from coterie.core.cli.main import main

pytestmark = pytest.mark.long

FIRST, SECOND, THIRD = parts_of(rows_in_time())
END = max(time for _, _, time in FIRST)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Files, a folder of runs, and a finished run in it."""
    folder = tmp_path_factory.mktemp("refused")
    files = written(folder)
    return files, folder, train(folder, "one", "--method", "ft", data=files[0])


ROWS = {
    "no rows": ([], "has no rows"),
    "rows of the run": (FIRST[-40:], "40 of 40 rows of {} are in the run already"),
    "the same again": (FIRST, "360 of 360 rows of {} are in the run already"),
    "some of before": (
        [*SECOND, ("u0", "i0", END - 1), ("u0", "i5", 3)],
        "2 of 92 rows of {} are not later than the newest row of the run",
    ),
    "as late as before": (
        [*SECOND, ("u0", "i0", END)],
        f"1 of 91 rows of {{}} are not later than the newest row of the run, of time {END}, as "
        f"that of user 'u0' and item 'i0' at {END}",
    ),
    "other ids": (
        [(f"x{user}", f"x{item}", time) for user, item, time in SECOND],
        "no user and no item of {} is known to the run",
    ),
    "a time that is none": ([*SECOND, ("u0", "i0", "soon")], "line 92: column 'time' is 'soon'"),
    "a row that is short": ([*SECOND, ("u0",)], "line 92: expected 3 columns, found 1"),
}


def refusal(runs, capsys, data, *flags, name="one"):
    """The line that a refused growth ends with; the run has kept every byte."""
    _, out, run = runs
    before = files_in(run)
    capsys.readouterr()
    assert grow(out, name, data, *flags) == 2
    assert files_in(run) == before
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_cannot_be_added(runs, capsys, tmp_path, case):
    rows, wanted = ROWS[case]
    path = write(tmp_path / "new.csv", rows)
    assert wanted.format(path) in refusal(runs, capsys, path)


def test_columns_and_times_that_are_missing(runs, capsys, tmp_path):
    path = write(tmp_path / "new.csv", SECOND, ("who", "item", "time"))
    said = refusal(runs, capsys, path)
    assert "no column 'user'" in said
    assert "has the columns of the run's" in said
    path = write(tmp_path / "new.csv", SECOND, ("user", "item", "when"))
    assert f"adding rows to a run needs timestamps, and {path} has none" in refusal(
        runs, capsys, path
    )
    assert "there is no file" in refusal(runs, capsys, tmp_path / "nothing.csv")


def test_rows_of_which_filters_leave_nothing(tmp_path, capsys):
    """Who is new needs as many rows as the k-core asks for."""
    files = written(tmp_path)
    run = train(tmp_path, "core", "--data.min_interactions", "2", data=files[0])
    rows = [(f"new{n}", FIRST[n][1] if n else "nothing", END + 9) for n in range(4)]
    said = refusal((files, tmp_path, run), capsys, write(tmp_path / "n.csv", rows), name="core")
    assert "nothing of" in said
    assert "nor 2 of a new one" in said


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--seed", "1"], "with another 'seed'"),
        (["--method", "reg"], "with another 'method'"),
        (["--data.min_interactions", "3"], "with another 'data.min_interactions'"),
        (["--data.fractions", "[.5]"], "with another 'data.fractions'"),
        (["--data.columns", "user=item,item=user"], "with another 'data.columns'"),
        (["--rounds", "3"], "earlier blocks had another number"),
        (["--engine.name", "processes"], "keep the data that they were started with"),
    ],
)
def test_other_settings(runs, capsys, flags, wanted):
    assert wanted in refusal(runs, capsys, runs[0][1], *flags)


def test_clients_with_folders_of_their_own(tmp_path, capsys):
    files = written(tmp_path)
    run = train(tmp_path, "one", "--method", "ft", "--trainer.max_epochs", "1", data=files[0])
    (run / "clients").mkdir()
    assert "keep the data" in refusal((files, tmp_path, run), capsys, files[1])


def test_data_sets_and_papers_that_do_not_grow(runs, capsys):
    files, out, _ = runs
    said = refusal(runs, capsys, "sample")
    assert f"with another 'data.name': it has '{files[0]}', not 'sample'" in said
    flags = ["--preset", "smoke", "--logger.wandb", "off", "--run.progress", "false"]
    assert main(["train", "page", *flags, *where(out, "other")]) == 0
    capsys.readouterr()
    grown = ["--resume", "--data", str(files[1]), *where(out, "other")]
    assert main(["train", "page", *grown]) == 2
    said = capsys.readouterr().err
    assert "with another 'data.name': it has 'synthetic'" in said
    assert said.count("\n") == 1


def test_files_from_the_start_are_in_the_order_of_time(runs, capsys):
    files, out, _ = runs
    more = f"[{files[2]},{files[1]}]"
    command = ["train", "f3crec", "--data", str(files[0]), "--data.more", more]
    assert main([*command, *where(out, "never")]) == 2
    assert "are not later than the newest row" in capsys.readouterr().err
    assert not (out / "f3crec" / "never").exists()
    assert main([*command[:-1], "[ml-100k]", *where(out, "never")]) == 2
    assert "'ml-100k' is a data set: name a file" in capsys.readouterr().err


def test_old_files_that_have_changed(tmp_path, capsys):
    files = written(tmp_path)
    first, second, third, _ = files
    run = train(tmp_path, "one", "--method", "ft", data=first)
    changed = "the data have changed since the run was trained"
    write(first, FIRST[1:])
    assert changed in refusal((files, tmp_path, run), capsys, second)
    write(first, [*FIRST[:-1], ("u0", *FIRST[-1][1:])])
    assert changed in refusal((files, tmp_path, run), capsys, second)
    renamed = {"u0": "u00"}  # in the same place among all names, so that numbers are the same
    write(first, [(renamed.get(user, user), *row) for user, *row in FIRST])
    assert changed in refusal((files, tmp_path, run), capsys, second)
    write(first, random.Random(9).sample(FIRST, len(FIRST)))  # another order is the same rows
    assert grow(tmp_path, "one", second) == 0
    instead = refusal((files, tmp_path, run), capsys, third, "--data.more", f"[{third}]")
    assert "with another 'data.more'" in instead
    write(second, SECOND[:-1])
    assert changed in refusal((files, tmp_path, run), capsys, third)
    second.unlink()
    assert "there is no file" in refusal((files, tmp_path, run), capsys, third)


def test_a_run_without_a_name_grows_where_only_one_can(tmp_path, capsys):
    first, second, third, _ = written(tmp_path)
    run = train(tmp_path, "one", "--method", "ft", data=first)
    asked = ["train", "f3crec", "--resume", "--run.out", str(tmp_path), "--data"]
    assert main([*asked, str(second)]) == 0
    said = "".join(capsys.readouterr().out.split())
    assert f"{run}goesonwiththerowsof{second}" in said
    assert main([*asked, str(second)]) == 2
    assert "no unfinished run" in capsys.readouterr().err
    assert grow(tmp_path, "one", second) == 0
    assert "has the rows of" in capsys.readouterr().out
    damaged = tmp_path / "f3crec" / "damaged"
    damaged.mkdir()
    (damaged / "config.yaml").write_text("paper: f3crec\nrounds: many\n")
    assert main([*asked, str(third)]) == 0
    fourth = write(tmp_path / "fourth.csv", [("u0", "i0", 9999)])
    train(tmp_path, "two", "--method", "ft", data=first)
    assert main([*asked, str(fourth)]) == 2
    assert "2 runs could go on with the rows of" in capsys.readouterr().err
    assert main([*asked, str(tmp_path / "nothing.csv")]) == 2
    assert "no unfinished run" in capsys.readouterr().err
