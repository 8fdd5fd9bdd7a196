"""Table 1 of a small file: rows, numbers of the runs, the cache, what limits it."""

import json

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from tests.assisted.ratings_file import ITEMS_IN_COMMON, made, row_of, words, write_ratings

from coterie.assisted.experiment import Experiment
from coterie.assisted.paper import PAPER
from coterie.assisted.prediction_messages import MEASURE, Predictions
from coterie.assisted.readings import baseline
from coterie.assisted.tables import CATALOGUE, main_table, make_table, study
from coterie.assisted.tables.main_table import Part, standing_notes, with_best_rate
from coterie.assisted.tables.rows import RATES, Row, baselines, ceilings, own_rows, released_rows
from coterie.assisted.tables.study import Cell
from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tables.result import RunResult

pytestmark = pytest.mark.long

USERS_IN_COMMON = ["--data.align=user", "--data.domains=uniform", "--data.count=3"]
EXPLICIT, IMPLICIT = "RMSE, item Uniform", "MAP@10, item Uniform"
TRAINED = ["MF", "MLP", "NCF", "AAE"]
COMMON = [
    *("Joint " + model for model in ["Base", "bias model", *TRAINED]),
    *("Alone " + model for model in ["Base", "bias model", *TRAINED]),
    "smoothed rate, joint or alone",
    "MTAL",
]
CEILINGS = [
    "Joint AutoRec of items, 5 averaged (ours)",
    "Joint MTAL, 3 virtual parts (ours)",
    "Alone AutoRec of items and users, 5 averaged (ours)",
]
RECOMMENDED = [*COMMON[:6], *CEILINGS[:2], *COMMON[6:12], CEILINGS[2], *COMMON[12:]]
FEW = ["Joint Base", "Joint MF", "Joint AAE", "Alone AAE", COMMON[-2], "MTAL"]
"""Rows of the released reading here: its list of baselines is that of the other reading."""
OURS = [
    "MTAL, η by validation (ours)",
    "MTAL from own bias models, η by validation (ours)",
]


@pytest.fixture(scope="module", autouse=True)
def _few_released():
    def few(cell, settings):
        every = baselines(cell, settings)
        return [row for row in every if settings.reading != "released" or row.label in FEW]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main_table, "baselines", few)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def file(out):
    return write_ratings(out)


@pytest.fixture(scope="module")
def table(file, out):
    return made(file, out, *ITEMS_IN_COMMON, table=1)


def finished(settings):
    run = FederatedRun(Experiment(settings).federation())
    while not run.finished:
        run.advance()
    return run


def lines(report, reading):
    return {line["method"]: line for line in report.view if line["reading"] == reading}


def test_rows_columns_and_notes(table):
    recommended, released = (lines(table, name) for name in ("recommended", "released"))
    assert list(recommended) == [*RECOMMENDED, *OURS]
    assert list(released) == FEW
    assert list(table.view[0]) == ["reading", "method", EXPLICIT, IMPLICIT]
    for found, count in ((recommended, 2), (released, 1)):
        assert found["smoothed rate, joint or alone"][EXPLICIT] == "-"
        blank = [line for line in found.values() if "-" in (line[EXPLICIT], line[IMPLICIT])]
        assert len(blank) == count
    assert recommended[CEILINGS[1]][IMPLICIT] == "-"  # of items, no ranking for users
    assert recommended[CEILINGS[1]][EXPLICIT] == recommended["MTAL"][EXPLICIT]  # it is this cell's
    notes = "\n".join(table.notes)
    assert "2 rounds of 1 epochs (10 of 20)" in table.notes[0]
    assert notes.count("MTAL minus: Joint Base") == 4  # readings and columns
    assert notes.count("MTAL minus: MTAL, η by validation (ours)") == 2
    assert "recommended: MTAL is better by the means than Alone bias model in" in notes
    assert table.figure.read_bytes().startswith(b"\x89PNG")
    assert imread(table.figure).shape[1] > 1000


@pytest.mark.parametrize(
    ("reading", "feedback", "name"),
    [
        ("recommended", "explicit", "alone-mf"),
        ("recommended", "implicit", "joint-base"),
        ("recommended", "implicit", "mtal-bias-validation"),
        ("recommended", "explicit", "mtal-validation"),
        ("released", "explicit", "joint-aae"),
        ("released", "implicit", "rate"),
    ],
)
def test_numbers_are_those_of_runs(table, file, out, reading, feedback, name):
    metric = "test/rmse" if feedback == "explicit" else "test/map@10"
    argv = words(file, out, *ITEMS_IN_COMMON, f"--reading={reading}", f"--data.feedback={feedback}")
    argv.append("--evaluation=pooled")
    found = []
    for seed in (0, 1):
        settings = configure(PAPER, [*argv, f"--seed={seed}"]).settings
        match name:
            case "alone-mf" | "joint-aae":
                how = baseline(settings, *name.split("-"))
            case "joint-base":
                argv_base = [*argv, f"--seed={seed}", "--method=alone", "--model.name=base"]
                how = configure(PAPER, [*argv_base, "--method=joint", "--start=mean"]).settings
            case "rate":
                how = baseline(settings, "joint", "rate")
            case "mtal-validation":
                more = [f"--seed={seed}", "--assist.eta_rule=validation"]
                how = configure(PAPER, [*argv, *more]).settings
            case "mtal-bias-validation":
                more = [f"--seed={seed}", "--start=bias", "--assist.eta_rule=validation"]
                how = configure(PAPER, [*argv, *more]).settings
        found.append(finished(how).results[metric])
    row = row_of(table, name, metric, reading=reading, feedback=feedback)
    assert row["mean"] == pytest.approx(np.mean(found), abs=1e-12)
    assert row["sd"] == pytest.approx(np.std(found, ddof=1), abs=1e-12)
    assert row["seeds"] == 2


def test_the_smoothed_rate_is_the_same_joint_and_alone(file, out):
    argv = words(file, out, *ITEMS_IN_COMMON, "--data.feedback=implicit", "--evaluation=pooled")
    settings = configure(PAPER, argv).settings
    joint, alone = (finished(baseline(settings, how, "rate")) for how in ("joint", "alone"))
    assert joint.results["test/accuracy"] == pytest.approx(alone.results["test/accuracy"], abs=1e-6)
    assert held(joint) == held(alone)  # rankings differ by the order of ties only


def held(run):
    """Rows and scores of the test cells, whoever has them."""
    found = run.newest_cohort().ask(MEASURE, Predictions("test", {}, {}, 1)).ups.values()
    parts = [each.held for each in found]
    columns = [torch.cat([getattr(part, n) for part in parts]) for n in ("rows", "scores")]
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def test_rows_for_programs(table):
    for reading in study.READINGS:
        where = {"reading": reading, "feedback": "explicit", "align": "item", "domains": "uniform"}
        mtal = row_of(table, "mtal", "test/rmse", **where)
        assert mtal["setting"].startswith("η")
        assert "p" not in mtal
        other = row_of(table, "alone-aae", "test/rmse", **where)
        assert other["mtal_minus_it"] == pytest.approx(mtal["mean"] - other["mean"])
        assert 0 <= other["p"] <= 1
        assert row_of(table, "alone-aae", "rounds", **where)["mean"] == 2  # epochs
        assert row_of(table, "joint-base", "rounds", **where)["mean"] == 1
        assert row_of(table, "mtal", "cost/up_bytes", **where)["mean"] > 0
        assert (
            row_of(table, "joint-mf", "cost/up_bytes", **where)["mean"] == 2 * 12
        )  # epochs; loss and count
    json.dumps(list(table.rows))


def test_the_best_rate_is_that_of_the_means():
    def part(cell, values):
        runs = {
            name: [RunResult(metrics={cell.metric: value}) for value in found]
            for name, found in values.items()
        }
        settings = configure(PAPER, []).settings
        made = {name: row for name, row in zip(RATES, released_rows(settings), strict=True)}
        return with_best_rate(Part("released", cell, made, runs))

    tests = {"η 0.1": [0.9, 0.9], "η 0.3": [0.7, 1.0], "η optimised": [0.6, 1.3]}
    explicit = part(Cell("explicit", "user", "genre"), tests)
    assert explicit.rows["mtal"].settings.assist.eta == 0.3
    assert explicit.test("mtal") == [0.7, 1.0]
    implicit = part(Cell("implicit", "user", "genre"), tests)
    assert implicit.rows["mtal"].settings.assist.eta_rule == "lbfgs"
    assert list(implicit.rows) == list(implicit.results) == ["mtal"]


def test_mtal_stays_as_printed_where_options_are_configured():
    chosen = ["--start=bias", "--assist.own=leave-out", "--model.inputs=centred"]
    settings = configure(PAPER, chosen).settings
    rows = {row.name: row.settings for row in own_rows(settings)}
    assert rows["mtal"] == configure(PAPER, []).settings
    both = ["--start=bias", "--assist.eta_rule=validation"]
    assert rows["mtal-bias-validation"] == configure(PAPER, both).settings
    assert rows["mtal-configured"] == settings
    assert all(row.settings.start is None for row in released_rows(settings))
    kept = configure(PAPER, ["--start=logit"]).settings
    assert own_rows(kept)[0].settings.start == "logit"


def test_standing_counts_columns_where_mtal_is_better():
    settings = configure(PAPER, []).settings
    names = ("mtal", "alone-aae", "joint-aae")
    rows = {name: Row(name, name.title(), settings) for name in names}

    def part(feedback, *tests):
        cell = Cell(feedback, "user", "genre")
        runs = [[RunResult(metrics={cell.metric: x}) for x in found] for found in tests]
        return Part("released", cell, rows, dict(zip(names, runs, strict=True)))

    explicit = part("explicit", [0.90, 0.91, 0.92], [1.3, 1.31001, 1.32], [0.8, 0.9, 0.7])
    implicit = part("implicit", [0.80, 0.81, 0.82], [0.7, 0.7, 0.8], [0.9, 0.8, 0.9])
    assert standing_notes([explicit, implicit]) == [
        "released: MTAL is better by the means than Alone-Aae in 2 of 2 (significantly 1), "
        "Joint-Aae in 0 of 2 (significantly 0) columns."
    ]


def test_released_mtal_is_the_best_of_its_runs(table, file, out):
    made_of = make_study(file, out, "--reading=released", *ITEMS_IN_COMMON)
    cell = Cell("implicit", "item", "uniform")
    jobs = [made_of.job(row.settings) for row in released_rows(made_of.tuned(cell, "released"))]
    tests = [RunResult.read(job.path).metrics["test/map@10"] for job in jobs]  # of seed 0, cached
    assert len(set(tests)) > 1
    one = made(file, out, *ITEMS_IN_COMMON, "--reading=released", seeds=(0,), table=1)
    assert row_of(one, "mtal", "test/map@10")["mean"] == max(tests)


def make_study(file, out, *more):
    return study.Study(configure(PAPER, words(file, out, *more)), (0,), 0)


def test_the_slides_numbers_stand_in_brackets(table, file, out, monkeypatch):
    monkeypatch.setattr(study.Study, "data", "ml-100k")
    monkeypatch.setattr(study.Study, "slug", "ratings")
    monkeypatch.setattr(study.Study, "train", None)  # all is there
    report = made(file, out, *ITEMS_IN_COMMON, table=1)
    found = lines(report, "recommended")
    assert found["Alone AAE"][EXPLICIT].endswith(" (1.0940)")
    assert found["Joint NCF"][IMPLICIT].endswith(" (0.6930)")
    assert found["MTAL"][EXPLICIT].endswith(" (0.8830)")
    assert lines(report, "released")["MTAL"][IMPLICIT].endswith(" (0.7060)")
    for label in (*OURS, "Alone bias model", "smoothed rate, joint or alone"):
        assert "(" not in found[label][EXPLICIT]
    assert row_of(report, "joint-mf", "test/rmse", reading="released")["paper"] == 0.944


def test_an_interrupted_table_goes_on(file, tmp_path, monkeypatch):
    flags = [*ITEMS_IN_COMMON, "--data.feedback=implicit", "--reading=recommended"]
    whole, done = study.Study.train, []

    def counting(settings):
        if len(done) == 5 and not resumed:
            raise KeyboardInterrupt
        done.append(settings)
        return whole(settings)

    resumed = False
    monkeypatch.setattr(study.Study, "train", counting)
    monkeypatch.setattr(main_table, "own_rows", lambda settings, more: own_rows(settings)[:1])
    with pytest.raises(KeyboardInterrupt):
        made(file, tmp_path, *flags, table=1, seeds=(0,))
    cache = tmp_path / "mtal" / "tables" / "cache"
    kept = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(kept) == 5
    resumed = True
    report = made(file, tmp_path, *flags, table=1, seeds=(0,))
    assert len(done) == len(report.view) == 16
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.parametrize("where", [ITEMS_IN_COMMON, USERS_IN_COMMON])
def test_the_best_variant_has_a_row_and_is_compared_with_all(file, out, where):
    report = made(file, out, *where, "--data.feedback=explicit", "--variant=best")
    assert {line["reading"] for line in report.view} == {"recommended"}
    *others, last = [line["method"] for line in report.view]
    assert last == "--variant best (ours)"
    assert ("--variant sums (ours)" in others) == (where is USERS_IN_COMMON)
    (tests,) = [note for note in report.notes if "--variant best (ours) minus: " in note]
    assert all(f"{name} " in tests for name in others if name != "smoothed rate, joint or alone")
    assert "MAP@10" not in report.title
    assert "setting" not in row_of(report, "best", "test/rmse")  # its rate is no setting
    assert row_of(report, "mtal", "test/rmse")["setting"] == "η 0.3"
    with pytest.raises(UserError, match="leave out --table"):
        made(file, out, *where, "--variant=best", table=1)


@pytest.mark.parametrize(
    ("flags", "which", "subject", "name"),
    [
        ((), {"table": 1}, "MTAL", "mtal"),
        (("--variant=best",), {}, "--variant best (ours)", "best"),
    ],
)
def test_the_picture_is_of_the_variant_where_it_has_a_row(file, out, flags, which, subject, name):
    limits = ["--data.feedback=explicit", "--reading=recommended"]
    report = made(file, out, *ITEMS_IN_COMMON, *limits, *flags, **which)
    picture = json.loads(report.figure.with_suffix(".panels.json").read_text("utf-8"))
    assert picture["columns"] == 1  # names are too long for two
    drawn = picture["panels"]
    assert [panel["x_label"] for panel in drawn] == [f"{subject} minus it, RMSE"]
    (differences,) = drawn[0]["series"].values()
    assert subject not in differences
    own, base = (row_of(report, row, "test/rmse")["mean"] for row in (name, "joint-base"))
    assert differences["Joint Base"]["@comparison"][0] == pytest.approx(own - base, rel=1e-5)


def test_flags_limit_the_table_and_name_its_file(file, out):
    def cells_of(*flags, shown=False):
        return [
            (cell.feedback, cell.align, cell.domains)
            for cell in make_study(file, out, *flags).cells(shown=shown)
        ]

    both = ("explicit", "implicit")
    partitions = [("user", "uniform"), ("user", "genre"), ("item", "uniform")]
    assert cells_of() == [(feedback, *part) for feedback in both for part in partitions]
    assert cells_of(shown=True) == [
        (feedback, *part) for feedback in both for part in partitions[1:]
    ]
    assert cells_of("--data.domains=uniform", "--data.feedback=implicit") == [
        ("implicit", "user", "uniform"),
        ("implicit", "item", "uniform"),
    ]
    assert cells_of(*ITEMS_IN_COMMON, shown=True) == [(f, "item", "uniform") for f in both]
    assert cells_of("--data.domains=source") == [(f, "user", "source") for f in both]
    limited = make_study(file, out, "--reading=released", "--data.feedback=implicit")
    assert limited.readings == ("released",)
    assert limited.file("table1") == "table1-ratings-released-implicit"
    assert make_study(file, out).file("table1") == "table1-ratings"


def test_side_information_has_rows_of_its_own_and_one_seed(monkeypatch):
    settings = configure(PAPER, ["--data.side=true"]).settings
    assert next(row.label for row in own_rows(settings)) == "MTAL_s"
    labels = [row.label for row in baselines(Cell("explicit", "user", "genre"), settings)]
    assert "Alone AAE_s" in labels
    assert "Alone bias model" in labels
    labels = [row.label for row in ceilings(Cell("explicit", "user", "genre"), settings, settings)]
    assert "Joint MTAL_s, 8 virtual parts (ours)" in labels
    assert "Joint AutoRec of items, 5 averaged (ours)" in labels  # it reads no profiles
    asked = []
    monkeypatch.setattr(type(CATALOGUE), "make_table", lambda self, *_, **how: asked.append(how))
    for flags, seeds in (["--data.side=true"], None), ([], None), (["--data.side=true"], (3, 4)):
        make_table(configure(PAPER, flags), table=1, seeds=seeds)
    assert [how["seeds"] for how in asked] == [(0,), None, (3, 4)]


def test_options_that_are_configured_have_a_row(file):
    settings = configure(PAPER, ["--train.hide=.3", "--assist.eta=.2"]).settings
    rows = {row.name: row.settings for row in own_rows(settings)}
    assert rows["mtal-configured"] == settings
    assert (rows["mtal"].train.hide, rows["mtal"].assist.eta) == (0.0, 0.2)
    assert "mtal-configured" not in {row.name for row in own_rows(configure(PAPER, []).settings)}


@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
def test_baselines_are_the_same_in_every_reading(feedback):
    cell, every = Cell(feedback, "item", "uniform"), []
    for name in study.READINGS:
        flags = [f"--reading={name}", f"--data.feedback={feedback}"]
        rows = baselines(cell, configure(PAPER, flags).settings)
        every.append([row.label for row in rows])
    blank = {"smoothed rate, joint or alone"} if feedback == "explicit" else set()
    assert every[0] == every[1]
    assert set(every[0]) == {*COMMON} - {"MTAL"} - blank


def test_what_is_refused(file, out, tmp_path):
    with pytest.raises(UserError, match=r"leave out --method, or train one by coterie train mtal"):
        made(file, out, "--method=alone", table=1)
    with pytest.raises(UserError, match="table 7 is of the data"):
        made(file, out, table=7)
    with pytest.raises(UserError, match=r"figure 2 of mtal shows no results: choose 4, 5 or 6"):
        made(file, out, figure=2)
    with pytest.raises(UserError, match="ml-10m") as told:
        made("ml-10m", out, f"--data_root={tmp_path}", table=1)
    assert "\n" not in str(told.value)
