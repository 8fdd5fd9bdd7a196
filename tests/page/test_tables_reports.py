"""Reports of a size that takes seconds: every table and figure, the cache, what is refused."""

from dataclasses import replace

import pytest
from matplotlib.image import imread

from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper
from coterie.core.run import dashboard
from coterie.core.settings.configuration import configure
from coterie.core.tables import pictures
from coterie.page.paper import PAPER
from coterie.page.tables import figures, make_table, properties, skew, study
from coterie.page.tables import properties as dial

pytestmark = pytest.mark.long

BATCHES = 5  # of 42 samples, in an epoch of one of the clients, who have 210
TINY = {
    "rounds": 2,
    "data.clients": 3,
    "train.epochs": 2,
    "train.batch_size": 42,
    "branch.shares": 2,
    "branch.epochs": 1,
    "run.progress": "false",
}
FEW = ("fedavg", "ditto", "local", "central", "page")
BESIDE = ("fedavg+branch", "decoupled")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def no_figures(monkeypatch):
    """For reports of which nobody looks at the figure."""
    monkeypatch.setattr(pictures, "draw_files", lambda *_, **__: [])


@pytest.fixture
def few_methods(monkeypatch):
    found = study.Study.present
    monkeypatch.setattr(
        study.Study,
        "present",
        lambda self, names: [n for n in found(self, names) if n in (*FEW, *BESIDE)],
    )


@pytest.fixture
def two_strengths(monkeypatch):
    """Two of the three strengths by which synthetic clients differ in a way."""
    skews = [replace(one, values=one.values[:2]) for one in skew._OF_TASK["synthetic"]]
    monkeypatch.setitem(skew._OF_TASK, "synthetic", tuple(skews))


def made(out, seeds=(0, 1), changes=None, **which):
    flags = {**TINY, "run.out": out, **(changes or {})}
    argv = [f"--{name}={value}" for name, value in flags.items()]
    return make_table(configure(PAPER, argv), **which, seeds=seeds, workers=0)


def metric(report, method, name, **where):
    (row,) = [
        row
        for row in report.rows
        if row["method"] == method
        and row["metric"] == name
        and all(row[key] == value for key, value in where.items())
    ]
    return row


def is_image(path):
    return path.read_bytes().startswith(b"\x89PNG") and imread(path).shape[1] > 1000


def test_table_1_has_every_method_and_is_read_from_the_cache(out, few_methods, monkeypatch):
    report = made(out, table=1)
    assert [line["method"] for line in report.view] == [
        *("majority class", "local only", "central", "FedAvg", "Ditto", "PAGE"),
        *("FedAvg + branch", "PAGE (decoupled)"),
    ]
    assert is_image(report.figure)
    lines = {line["method"]: line for line in report.view}
    assert lines["local only"]["global acc %"] == "-"
    assert lines["central"]["local acc %"] == "-"
    assert lines["FedAvg"]["global acc %"].endswith("(91.46)")
    row = metric(report, "fedavg", "cost/local_steps")
    assert row["mean"] == 2 * 3 * 2 * BATCHES  # rounds, clients, epochs
    assert metric(report, "ditto", "cost/local_steps")["mean"] == 2 * row["mean"]
    assert metric(report, "page", "test/personal_accuracy")["paper"] == 0.9624
    assert all(row["seeds"] == 2 for row in report.rows)
    assert any("best or second best" in note for note in report.notes)
    assert report.notes[0].startswith("3 clients train softmax, at most 2 rounds of 2 local epochs")
    assert "Not as in the paper (in brackets): 3 clients (100)" in report.notes[0]
    assert any(note.startswith("local accuracy, PAGE minus") for note in report.notes)
    cache = out / "page" / "tables" / "cache"
    files = {path.name.rsplit("-", 1)[0] for path in cache.iterdir()}  # other tables' runs too
    assert files >= {
        f"synthetic-{method}-s{seed}" for method in ("majority-class", *FEW) for seed in (0, 1)
    }
    monkeypatch.setattr(study.Study, "train", None)
    assert made(out, table=1).markdown() == report.markdown()
    assert "| PAGE |" in report.save(out).read_text()


@pytest.mark.usefixtures("no_figures")
def test_every_method_has_a_row(out):
    report = made(out, seeds=(0,), table=1)
    methods = [line["method"] for line in report.view]
    assert methods[-5:] == ["PAGE", *(study.NAMES[name] for name in study.BESIDE)]
    missing = set(PAPER.methods) - {row["method"] for row in report.rows}
    assert missing == {"fedrecon"}
    assert any("FedRECON cannot run" in note for note in report.notes)


def test_table_2_says_when_fedavgs_end_is_reached(out, few_methods):
    report = made(out, table=2)
    assert [line["method"] for line in report.view] == [
        *("FedAvg", "Ditto", "PAGE", "FedAvg + branch", "PAGE (decoupled)")
    ]
    fedavg = report.view[0]
    assert fedavg["global: reached"] == fedavg["local: reached"] == "2 of 2"
    assert [line["paper's round"] for line in report.view] == [902, 491, 891, None, None]
    row = metric(report, "fedavg", "local_steps_to_fedavg", column="global")
    # Two seeds, each after one round or two.
    assert row["mean"] in [n * BATCHES for n in (6, 9, 12)]


def test_table_3_varies_how_clients_differ(out, few_methods, two_strengths):
    report = made(out, seeds=(0,), table=3)
    names = ["PAGE", "Ditto", "FedAvg + branch", "PAGE (decoupled)"]
    assert [line["method"] for line in report.view] == names
    labels = ("σ=0.1", "σ=0.3", "β=0.5", "β=1")
    assert list(report.view[0]) == [
        "method",
        *(f"{label} {side}" for label in labels for side in ("global", "local")),
    ]
    values = {
        row["value"]: row["mean"]
        for row in report.rows
        if row["metric"] == "test/server_accuracy" and row["method"] == "page"
    }
    assert len(set(values.values())) > 3
    assert is_image(report.figure)
    with pytest.raises(UserError, match="clients of 'shakespeare' cannot be made to differ"):
        made(out, table=3, changes={"data.name": "shakespeare"})


@pytest.mark.usefixtures("no_figures")
def test_table_3_of_a_skew_that_is_named_is_its_column(out, few_methods, two_strengths):
    whole = made(out, seeds=(0,), table=3)
    column = made(out, seeds=(0,), table=3, changes={"data.quantity_skew": 0.3})
    assert list(column.view[0]) == ["method", "σ=0.3 global", "σ=0.3 local"]
    assert column.view == [{key: line[key] for key in column.view[0]} for line in whole.view]
    assert not any("from σ" in note for note in column.notes)
    other = made(out, seeds=(0,), table=3, changes={"data.feature_skew": 0.25})
    assert list(other.view[0])[1:] == ["β=0.25 global", "β=0.25 local"]
    assert len({report.name for report in (whole, column, other)}) == 3


def test_table_3_has_three_strengths_of_what_differs_in_synthetic_clients():
    labels = [one.label(value) for one in skew._OF_TASK["synthetic"] for value in one.values]
    assert labels == ["σ=0.1", "σ=0.3", "σ=0.5", "β=0.5", "β=1", "β=2"]


def test_table_3_shares_pictures_out_by_ratios_of_classes(out, monkeypatch):
    """Shards, which the user may have named, know no strength of a skew."""
    variants = {}

    def run_all(self, title, found):
        variants.update(found)
        raise UserError("enough")

    monkeypatch.setattr(study.Study, "run_all", run_all)
    with pytest.raises(UserError, match="enough"):
        made(out, table=3, changes={"data.name": "cifar-100", "data.partition": "shards"})
    strengths = {"quantity": (0.1, 0.3, 0.5), "label": (0.1, 0.5, 1.0)}
    columns = {(kind, value) for _, kind, value in variants}
    assert columns == {(kind, value) for kind, values in strengths.items() for value in values}
    for (_, kind, value), settings in variants.items():
        assert settings.data.partition == "dirichlet"
        assert getattr(settings.data, f"{kind}_skew") == value


@pytest.mark.usefixtures("no_figures")
def test_table_4_has_clients_and_ratios_and_says_what_cannot_be(out, monkeypatch):
    report = made(out, seeds=(0,), table=4, changes={"game.patience": 1, "game.tolerance": 9})
    assert [line["variant"] for line in report.view] == [
        *("1 clients", "3 clients", "30 clients") * 2,
        *("10:1", "1:1", "1:10"),
    ]
    assert [line["method"] for line in report.view[2:5]] == ["PAGE"] + ["PAGE (decoupled)"] * 2
    assert sum("should move" in note for note in report.notes) == 4
    assert all(
        line["rest"].startswith("-") for line in report.view
    )  # at the earliest in the last round
    flags = [f"--{k}={v}" for k, v in (TINY | {"run.out": out}).items() if k != "data.clients"]
    found = study.Study(configure(PAPER, flags), (0,), 0)
    monkeypatch.setattr(properties, "CLIENTS", (2, -1))
    monkeypatch.setattr(properties, "Experiment", _refusing_many(properties.Experiment))
    counts, notes = properties._counts(found)
    assert counts == []
    assert notes[0] == "Not with 2 clients: too many"


def test_table_4_trains_the_tasks_own_number_of_clients_once(tmp_path, monkeypatch):
    monkeypatch.setattr(properties, "CLIENTS", (50, 100, 200))
    paths = {}

    def run_all(self, title, variants):
        paths.update({name: self.job(settings).path for name, settings in variants.items()})
        raise InterruptedError

    monkeypatch.setattr(study.Study, "run_all", run_all)
    with pytest.raises(InterruptedError):
        properties.property_table(
            study.Study(configure(PAPER, ["--run.out", str(tmp_path)]), (0,), 0)
        )
    assert paths["page", "clients", "100"] == paths["page", "ratio", "1:1"]
    assert len(set(paths.values())) == len(paths) - 1 == 8


def test_table_4_of_the_reading_decoupled_has_no_ratios(tmp_path):
    argv = ["--run.out", str(tmp_path), "--reading", "decoupled"]
    found = properties._variants(study.Study(configure(PAPER, argv), (0,), 0), [50, 100])
    assert list(found) == [("decoupled", "clients", "50"), ("decoupled", "clients", "100")]


def _refusing_many(experiment):
    class Refusing(experiment):
        @property
        def task(self):
            raise UserError("too many")

    return Refusing


def test_table_5_measures_all_operations(out):
    report = made(out, seeds=(0,), table=5, changes={"rounds": 4})
    operations = {(line["method"], line["operation"]) for line in report.view}
    assert ("PAGE, server agent", "server agent") in operations
    assert ("PAGE, best response", "best response") in operations
    assert ("FedAvg", "client agents") not in operations
    assert sum("together cost" in note for note in report.notes) == 2
    shares = [
        row["mean"]
        for row in report.rows
        if row["method"] == "FedAvg"
        and row["metric"] == "% of a round"
        and row["operation"] != "evaluation"
    ]
    assert sum(shares) == pytest.approx(100)


def test_figure_2_shows_accuracy_and_reward(out):
    report = made(out, figure=2, changes={"rounds": 4})
    assert [line["round"] for line in report.view] == [1, 2, 3, 4]
    assert all(line["reward, server"] != "-" for line in report.view)
    assert is_image(report.figure)
    assert any("Rank correlation" in note for note in report.notes)


def test_figure_3_switches_the_factors(out):
    report = made(out, seeds=(0,), figure=3, changes={"train.epochs": 9})
    assert [line["chosen"] for line in report.view] == list(figures.VARIANTS)
    steps = {
        row["variant"]: row["mean"] for row in report.rows if row["metric"] == "cost/local_steps"
    }
    full = steps["none"]
    chosen = {name for name in figures.VARIANTS if "α" in name}
    assert all(steps[name] == full for name in steps.keys() - chosen)
    assert min(steps[name] for name in chosen) < full == 2 * 3 * 9 * BATCHES
    assert is_image(report.figure)


@pytest.mark.usefixtures("no_figures")
def test_rows_beside_the_papers_change_nothing_that_is_said_of_the_papers(out, few_methods):
    """PAGE is ranked and tested among the paper's methods; decoupled among all, with a branch."""
    report = made(out, table=1)
    (papers,) = [note for note in report.notes if note.startswith("local accuracy, PAGE minus")]
    assert "branch" not in papers
    assert "decoupled" not in papers
    (ours,) = [n for n in report.notes if n.startswith("local accuracy, PAGE (decoupled) minus")]
    assert all(name in ours for name in ("PAGE ", "FedAvg ", "FedAvg + branch "))
    own, same = (metric(report, n, "test/personal_accuracy") for n in ("fedavg+branch", "fedavg"))
    # The last rounds are of the same federation: a branch changes nothing but what is one's own.
    last = [metric(report, n, "last/server_accuracy") for n in ("fedavg+branch", "fedavg")]
    assert last[0]["mean"] == last[1]["mean"]
    assert own["mean"] != same["mean"]
    steps = [metric(report, n, "cost/local_steps")["mean"] for n in ("fedavg+branch", "fedavg")]
    assert steps[0] == steps[1] * (2 + 3 * 1) / 2  # three rates of one epoch beside two


def test_what_is_said_of_the_reading_decoupled_is_for_its_own_row_alone(tmp_path):
    def rows(*words):
        found = study.Study(configure(PAPER, ["--run.out", str(tmp_path), *words]), (0,), 0)
        names = (*found.federated, *found.beside)
        return {name: study.as_row(found.settings, name) for name in names}

    usual = rows()
    said = rows("--reading", "decoupled", "--game.drift", "control", "--game.generality", "0.5")
    assert usual.keys() == said.keys()
    own, plain = said.pop("decoupled").game, usual.pop("decoupled").game
    assert (own.drift, own.generality) == ("control", 0.5)
    assert (plain.drift, plain.generality) == (None, None)
    assert said == usual


@pytest.mark.usefixtures("no_figures")
def test_figures_of_the_reading_decoupled_play_it(out):
    report = made(out, seeds=(0,), figure=2, changes={"reading": "decoupled"})
    assert {row["method"] for row in report.rows} == {"decoupled"}
    argv = ["--run.out", str(out), "--reading", "decoupled"]
    chosen = figures.variant(study.Study(configure(PAPER, argv), (0,), 0), "p")
    assert (chosen.reading, chosen.game.tune_lr, chosen.game.tune_p) == ("decoupled", False, True)


def test_table_6_turns_lambda_with_a_branch_and_without(out, monkeypatch):
    monkeypatch.setattr(
        dial, "VALUES", (0.0, 0.5, 1.0)
    )  # the ends and the middle, of which it tells
    report = made(out, table=6)
    assert [line["λ"] for line in report.view] == ["0", "0.5", "1"] * 2
    where = {"kind": "own model as sent", "generality": 1.0}
    sent = metric(report, "decoupled", "last/server_accuracy", **where)
    where["kind"] = "own model a branch"
    branch = metric(report, "decoupled", "last/server_accuracy", **where)
    assert sent["mean"] == branch["mean"]  # the branch touches nobody
    assert any("λ = 1 should move global accuracy up" in note for note in report.notes)
    assert any("λ = 0.5 minus" in note and "Holm" in note for note in report.notes)
    assert is_image(report.figure)


@pytest.mark.usefixtures("no_figures")
def test_no_report_shows_a_number_that_is_none(out, few_methods):
    for which, changes in (
        ({"table": 1}, {}),
        ({"table": 2}, {}),
        ({"figure": 2}, {"rounds": 4}),
        ({"figure": 3}, {"train.epochs": 9}),
    ):  # most runs are there from the tests above
        text = made(out, seeds=(0,), changes=changes, **which).markdown()
        assert "nan" not in text.replace("financ", "")


@pytest.mark.parametrize(
    ("which", "changes", "message"),
    [
        ({"table": 7}, {}, "page has no table 7: choose 1 to 6"),
        ({"figure": 1}, {}, "figure 1 of page shows no results: choose 2 or 3"),
        ({}, {}, "name a table or a figure, as --table 1"),
        ({"table": 1, "figure": 2}, {}, "name a table or a figure, as --table 1"),
        ({"table": 1, "seeds": ()}, {}, "a table needs a seed: give --seeds a number above 0"),
    ],
)
def test_what_cannot_be_made_is_one_clear_line(out, which, changes, message):
    with pytest.raises(UserError) as error:
        made(out, changes=changes, **which)
    assert str(error.value) == message


def test_files_are_named_by_what_they_depend_on(out):
    def name(**flags):
        argv = [f"--{key}={value}" for key, value in flags.items()]
        return study.Study(configure(PAPER, argv), (0,), 0).file("table1")

    assert name() == "table1-synthetic"
    assert name(reading="literal") == "table1-synthetic-literal"
    assert name(variant="best") == "table1-synthetic-best-decoupled"
    control = {"reading": "decoupled", "game.drift": "control"}
    assert name(**control) == "table1-synthetic-decoupled-control"
    cifar = {"data.name": "cifar-100"}
    assert name(**cifar) == "table1-cifar-100"
    skewed = {"data.quantity_skew": 0.5, "data.label_skew": 0.1}
    assert name(**cifar, **skewed) == "table1-cifar-100-label-skew-0.1-quantity-skew-0.5"
    assert name(**cifar, **{"model.name": "small-cnn"}) == "table1-cifar-100-small-cnn"


def test_the_curves_of_a_run_show_accuracies_and_rewards(tmp_path, monkeypatch):
    columns = {
        "round": range(1, 4),
        "block": (0, 0, 0),
        **dict.fromkeys(("eval/server_accuracy", "eval/personal_accuracy"), (0.1, 0.2, 0.3)),
        "test/server_accuracy": (0.3, 0.2, 0.1),
        "page/reward_server": (0.1, 0.3, 0.4),
        "page/reward_clients": (0.2, 0.3, 0.4),
        "cost/local_steps_total": (100, 150, 300),
    }
    table = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in table)]
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    drawn = {}
    original = dashboard._draw

    def draw(ax, panel, table, surface):
        original(ax, panel, table, surface)
        drawn[panel.title] = ax

    monkeypatch.setattr(dashboard, "_draw", draw)
    dashboard.render(tmp_path, find_paper("page"))
    assert {"Validation accuracy", "Test accuracy", "Accuracy against local steps"} < set(drawn)
    assert "Utilities of server and clients" in drawn
    steps = drawn["Accuracy against local steps"].get_lines()[0]
    assert list(steps.get_xdata()) == [100, 150, 300]
