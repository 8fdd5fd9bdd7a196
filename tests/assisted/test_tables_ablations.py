"""Table 3 and Figure 6 of a small file: variants, the last round, round 0, the slides' curves."""

import numpy as np
import pytest
from matplotlib.image import imread
from tests.assisted.ratings_file import ITEMS_IN_COMMON, made, row_of, words, write_ratings

from coterie.assisted.paper import PAPER
from coterie.assisted.settings import Settings
from coterie.assisted.tables import ablations as figures
from coterie.assisted.tables import study
from coterie.assisted.tables.ablations import HALF, WEIGHTS, ablation, ablations
from coterie.assisted.tables.study import Cell, train
from coterie.core.settings.configuration import configure
from coterie.core.settings.schema import changed
from coterie.core.tables.result import RunResult

GENRES, PARTS = Cell("explicit", "user", "genre"), Cell("implicit", "item", "uniform")
VARIANTS = ["η 0.1", "η 0.3", "η optimised", WEIGHTS, HALF]
EXPLICIT = "RMSE, item Uniform"
WHAT = ("test", "last")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def file(out):
    return write_ratings(out)


@pytest.fixture(scope="module")
def table(file, out):
    return made(file, out, *ITEMS_IN_COMMON, table=3)


@pytest.fixture(scope="module")
def figure(table, file, out):
    return made(file, out, *ITEMS_IN_COMMON, figure=6)


def runs_of(file, out, variant, seeds=(0, 1)):
    cell = Cell("explicit", "item", "uniform")
    found = []
    for seed in seeds:
        given = study.Study(configure(PAPER, words(file, out, *ITEMS_IN_COMMON)), (seed,), 0)
        (plan,) = (plan for plan in ablations(given) if plan.cell == cell)
        settings = changed(plan.all[variant], {"seed": seed, "evaluation": "pooled"})
        found.append(train(settings))
    return found


def test_variants_are_those_of_the_public_code():
    released = ablation(GENRES, Settings(reading="released"))
    assert list(released.variants) == VARIANTS
    assert released.reference == "η 0.1"
    optimised, weights, half = (released.variants[name] for name in VARIANTS[2:])
    assert (optimised.assist.eta_rule, optimised.assist.eta) == ("lbfgs", 0.1)
    assert optimised.assist.weights == "constant"
    assert (weights.assist.weights, weights.assist.eta_rule) == ("lbfgs", "constant")
    assert weights.assist.eta == half.assist.eta == 0.1
    assert half.data.common == 0.5
    assert {how.data.common for name, how in released.variants.items() if name != HALF} == {1.0}


def test_variants_of_ours_are_exact_and_at_the_configured_rate():
    given = {**PARTS.values, "assist.eta": 0.2, "train.hide": 0.4}
    found = ablation(PARTS, changed(Settings(), given))
    assert list(found.variants) == ["η 0.1", "η 0.2", *VARIANTS[1:]]
    assert found.reference == "η 0.2"
    assert found.variants["η optimised"].assist.eta_rule == "optimal"
    assert found.variants[WEIGHTS].assist.weights == "optimal"
    assert found.variants[HALF].assist.eta == found.variants[WEIGHTS].assist.eta == 0.2
    assert {how.train.hide for how in found.variants.values()} == {0.0}
    assert list(found.lines) == ["Joint AAE", "Alone AAE", "Alone smoothed rate"]


def test_table_3_has_test_and_last_round(table, file, out):
    assert [line["setting"] for line in table.view] == ["base model", *VARIANTS]
    labels = [f"{cell}: {what}" for cell in (EXPLICIT, "MAP@10, item Uniform") for what in WHAT]
    assert list(table.view[0]) == ["setting", *labels]
    runs = runs_of(file, out, WEIGHTS)
    row = row_of(table, WEIGHTS, "test/rmse", feedback="explicit")
    assert row["mean"] == pytest.approx(np.mean([run.metrics["test/rmse"] for run in runs]))
    last = row_of(table, WEIGHTS, "last/rmse", feedback="explicit")
    assert last["mean"] == pytest.approx(np.mean([run.curves["eval/rmse"][-1] for run in runs]))
    assert sum("η 0.3 minus: η 0.1" in note for note in table.notes) == 2


def test_the_slides_curves_stand_in_brackets(table, file, out, monkeypatch):
    monkeypatch.setattr(study.Study, "data", "ml-100k")
    monkeypatch.setattr(study.Study, "slug", "ratings")
    monkeypatch.setattr(study.Study, "train", None)  # all is there
    lines = {line["setting"]: line for line in made(file, out, *ITEMS_IN_COMMON, table=3).view}
    assert lines["base model"][f"{EXPLICIT}: test"].endswith(" (1.0400)")
    assert lines["η 0.3"][f"{EXPLICIT}: test"].endswith(" (0.8830)")
    assert lines["η 0.3"][f"{EXPLICIT}: last"].endswith(" (0.9120)")
    assert lines["η optimised"]["MAP@10, item Uniform: test"].endswith(" (0.7020)")
    assert "(" not in lines["η 0.1"][f"{EXPLICIT}: test"] + lines[HALF][f"{EXPLICIT}: last"]


def test_figure_6_starts_at_the_base_model(figure, file, out):
    lines = {(line["cell"], line["setting"]): line for line in figure.view}
    assert len(lines) == 2 * (len(VARIANTS) + 3)
    base, (mtal,) = runs_of(file, out, "base model"), runs_of(file, out, "η 0.1", seeds=(0,))
    both = [run.curves["eval/rmse"][0] for run in base]
    assert lines[EXPLICIT, "η 0.1"]["round 0"].startswith(f"{np.mean(both):.4f}")
    assert base[0].rounds == 1
    first = row_of(figure, "η 0.1", "eval/rmse", feedback="explicit", round=1)
    assert first["seeds"] == 2
    assert mtal.curves["eval/rmse"][0] != both[0]
    across = row_of(figure, "Alone AAE", "best/eval/rmse", feedback="explicit")
    best = [min(run.curves["eval/rmse"]) for run in runs_of(file, out, "Alone AAE")]
    assert across["mean"] == pytest.approx(np.mean(best))
    assert imread(figure.figure).shape[1] > 1000


def test_curves_have_round_0_and_lines_go_across():
    def run(*values):
        found = RunResult(chosen_by="eval/rmse", lower_is_better=True)
        for value in values:
            found.note({"eval/rmse": value})
        return found

    plan = ablation(GENRES, Settings())
    results = {name: [run(0.9, 0.8, 0.85)] for name in plan.variants}
    results |= {name: [run(0.7, 0.6)] for name in plan.lines} | {"base model": [run(1.0)]}
    found = figures.panel(plan, results).curves
    assert list(found["η 0.1"].x) == [0, 1, 2, 3]
    assert [point.mean for point in found["η 0.1"].y] == [1.0, 0.9, 0.8, 0.85]
    assert list(found["Joint AAE"].x) == [0, 3]
    assert [point.mean for point in found["Joint AAE"].y] == [0.6, 0.6]


def test_figures_4_and_5_are_the_same_panels(figure, file, out, monkeypatch):
    monkeypatch.setattr(study.Study, "train", None)  # all is there
    for number in (4, 5):
        other = made(file, out, *ITEMS_IN_COMMON, figure=number)
        assert other.view == figure.view
        assert other.title.startswith(f"Figure {number}, ")
