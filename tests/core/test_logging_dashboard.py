"""The dashboard's panels, the documentation of keys and the sweep file."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.image import imread

from coterie.continual.settings import Settings
from coterie.core import extras, figures
from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.metrics.monitor import Monitor
from coterie.core.registry.keys import KEYS, documented
from coterie.core.registry.papers import find_paper, papers
from coterie.core.run import dashboard, workspace
from coterie.core.run.dashboard import drawing, render

pytestmark = pytest.mark.usefixtures("drawn_anew")
ROOT = Path(__file__).resolve().parents[2]
NDCG = Monitor("eval/ndcg@20")
F3CREC = find_paper("f3crec")


@pytest.mark.parametrize("paper", papers().values(), ids=lambda paper: paper.name)
def test_every_panel_shows_documented_keys(paper):
    for section in workspace.sections(paper):
        for panel in section.panels:
            known = (*KEYS, *paper.keys)
            assert all(documented(key, known) for key in (*panel.keys, panel.x)), panel


def rows_below(heading):
    """The table of keys below a heading of the documentation."""
    text = (ROOT / "docs" / "wandb.md").read_text()
    below = text.split(f"\n### {heading}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \| (.+?) \|$", below, flags=re.MULTILINE)
    return {name: (unit, meaning) for name, unit, meaning in rows}


@pytest.mark.parametrize(
    ("heading", "keys"),
    [("Of every paper", KEYS), *((f"`{name}`", paper.keys) for name, paper in papers().items())],
)
def test_the_documentation_lists_exactly_the_keys(heading, keys):
    assert rows_below(heading) == {key.name: (key.unit, key.meaning) for key in keys}


@pytest.mark.parametrize("paper", papers().values(), ids=lambda paper: paper.name)
def test_a_paper_names_no_key_twice(paper):
    names = [key.name for key in (*KEYS, *paper.keys)]
    assert len(set(names)) == len(names)


@pytest.fixture
def run_folder(tmp_path):
    lines = ["round,block,fed/loss,eval/ndcg@20,cost/up_bytes_total,f3crec/replay_size,empty/key"]
    for r in range(1, 21):
        ndcg = 0.01 * r if r % 5 == 0 else ""
        lines.append(f"{r},{(r - 1) // 10},{1 / r},{ndcg},{100 * r},{r % 7},")
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.long
def test_curves_are_drawn_from_the_csv(run_folder):
    paths = render(run_folder, F3CREC, NDCG)
    assert paths == [run_folder / "curves.png", run_folder / "curves.svg"]
    image = imread(paths[0])
    assert image.shape[0] > 400
    assert image.shape[1] > 1000
    assert np.unique(image.reshape(-1, image.shape[-1]), axis=0).shape[0] > 20
    assert sorted(p.name for p in run_folder.iterdir()) == [
        "curves.png",
        "curves.svg",
        "metrics.csv",
    ]


def test_lines_have_the_measured_points_only(run_folder, monkeypatch):
    drawn = {}

    def draw(ax, panel, table, surface):
        original(ax, panel, table, surface)
        drawn[panel.title] = ax.get_lines()

    original = dashboard._draw
    monkeypatch.setattr(dashboard, "_draw", draw)
    render(run_folder, F3CREC, NDCG)
    assert list(drawn) == [
        "NDCG@20: mean and worst tenth",
        "NDCG@20 against bytes sent",
        "Items replayed by a client",
        "Training loss",
    ]
    curve = drawn["NDCG@20 against bytes sent"][0]
    assert list(curve.get_xdata()) == [500, 1000, 1500, 2000]
    assert list(curve.get_ydata()) == pytest.approx([0.05, 0.1, 0.15, 0.2])
    block_start = drawn["Training loss"][1]
    assert list(block_start.get_xdata()) == [11, 11]


def axes_of(folder, *args):
    """Draw; give the axes by title, and the title of the figure."""
    figure = figures.shown(drawing(folder, *args))
    return {ax.get_title("left").replace("\n", " "): ax for ax in figure.axes}, (
        figure.get_suptitle()
    )


def rings(ax):
    """Where the best rounds are marked."""
    found = [line for line in ax.get_lines() if line.get_markerfacecolor() == "none"]
    return [(*line.get_xdata(), *line.get_ydata()) for line in found]


def test_what_a_run_is_chosen_by_comes_first_with_its_best_rounds(run_folder):
    results = {"test/block1/ndcg@20": 0.25}
    drawn, _ = axes_of(run_folder, F3CREC, NDCG, "", results)
    title, ax = next(iter(drawn.items()))
    assert title == "NDCG@20: mean and worst tenth; ring: best round of a block"
    assert rings(ax) == [(10, pytest.approx(0.1)), (20, pytest.approx(0.2))]
    said = [text.get_text() for text in ax.texts]
    assert said == ["block 0\nround 10", "block 1\nround 20\ntest 0.2500"]


def test_the_test_of_a_run_of_one_block_stands_in_the_title(run_folder):
    table = pd.read_csv(run_folder / "metrics.csv").assign(block=0)
    table.to_csv(run_folder / "metrics.csv", index=False)
    drawn, _ = axes_of(run_folder, F3CREC, NDCG, "", {"test/ndcg@20": 0.25})
    assert next(iter(drawn)) == "NDCG@20: mean and worst tenth; best in round 20, test 0.2500"


def test_a_rule_without_training_is_a_line_of_the_test(run_folder):
    beside = {"test/popularity/ndcg@20": 0.07, "test/block1/ndcg@20": 0.2}
    beside |= {"test/average/ndcg@20": 0.3, "test/popularity/recall@20": 0.4}
    for results in (beside, {}):
        drawn, _ = axes_of(run_folder, F3CREC, NDCG, "", results)
        words = [text.get_text() for ax in drawn.values() for text in ax.texts]
        assert words.count("popularity, test") == bool(results)
        first = next(iter(drawn.values()))
        level = [line for line in first.lines if list(line.get_ydata()) == [0.07, 0.07]]
        assert len(level) == bool(results)


def test_a_measure_without_a_panel_gets_one_and_lower_may_be_better(run_folder):
    loss = Monitor("eval/rmse", lower_is_better=True)
    table = pd.read_csv(run_folder / "metrics.csv")
    table["eval/rmse"] = [3.0, 1.0, 2.0, 1.0, *[4.0] * 6, 9.0, 8.0, *[8.5] * 8]
    table.to_csv(run_folder / "metrics.csv", index=False)
    drawn, _ = axes_of(run_folder, F3CREC, loss)
    title, ax = next(iter(drawn.items()))
    assert title.startswith("rmse, by which rounds are chosen")
    assert rings(ax) == [(2, 1.0), (12, 8.0)]


@pytest.mark.parametrize("name", papers())
def test_what_a_paper_is_chosen_by_has_a_panel(name):
    chosen_by = {"pplr": {"eval/recall@10"}, "mtal": {"eval/rmse", "eval/map@10"}}
    chosen_by |= {"f3crec": {"eval/ndcg@20"}, "pf-msmtrec": {"eval/auc"}, "page": {"eval/accuracy"}}
    panels = [panel for panel in find_paper(name).panels if panel.x == "round"]
    assert chosen_by[name] <= {key for panel in panels for key in panel.keys}


def test_rounds_are_whole_bytes_have_a_unit_and_the_figure_says_what_it_is_of(run_folder):
    drawn, title = axes_of(run_folder, F3CREC, NDCG, "f3crec on sample, seed 7")
    assert title == f"f3crec on sample, seed 7, run {run_folder.name}"
    for ax in drawn.values():
        ticks = [text.get_text() for text in ax.get_xticklabels() if text.get_text()]
        if ax.get_xlabel() == "round":
            assert all(float(tick.replace("\N{MINUS SIGN}", "-")).is_integer() for tick in ticks)
        else:
            assert ax.get_xlabel() == "bytes sent by clients since the start"
            assert all(tick.endswith("B") for tick in ticks)
        assert ax.get_legend() is None


def test_what_never_changes_has_no_panel(run_folder):
    table = pd.read_csv(run_folder / "metrics.csv")
    flat = {"fed/loss": np.linspace(0.5, 0.5 + 1e-9, 20), "fed/clients": 5, "fed/refused": 0}
    table.assign(**flat).to_csv(run_folder / "metrics.csv", index=False)
    drawn, _ = axes_of(run_folder, F3CREC, NDCG)
    assert "Items replayed by a client" in drawn
    assert "Training loss" not in drawn
    assert "Clients accepted and refused" not in drawn


def test_measures_of_one_meaning_share_a_panel(run_folder):
    table = pd.read_csv(run_folder / "metrics.csv")
    for block, row in ((0, 8), (1, 18)):
        table[f"valid/block{block}/ndcg@20"] = np.where(
            (table.index == row) | (table.index == row + 1), block + table.index / 10, np.nan
        )
    table.to_csv(run_folder / "metrics.csv", index=False)
    drawn, _ = axes_of(run_folder, F3CREC, NDCG)
    [ax] = [ax for title, ax in drawn.items() if title.startswith("validation NDCG@20")]
    lines = [line for line in ax.get_lines() if line.get_label().startswith("block")]
    assert [list(line.get_xdata()) for line in lines] == [[9, 10], [19, 20]]
    assert [list(line.get_ydata()) for line in lines] == [[0.8, 0.9], [2.8, 2.9]]


def test_single_points_have_no_panel_beside_curves(run_folder):
    table = pd.read_csv(run_folder / "metrics.csv")
    table["valid/block0/ndcg@20"] = np.where(table.index == 9, 0.1, np.nan)
    table.to_csv(run_folder / "metrics.csv", index=False)
    drawn, _ = axes_of(run_folder, F3CREC, NDCG)
    assert not [title for title in drawn if title.startswith("validation NDCG@20")]


def test_one_round_is_a_point(run_folder):
    table = pd.read_csv(run_folder / "metrics.csv").head(1)
    table.to_csv(run_folder / "metrics.csv", index=False)
    drawn, _ = axes_of(run_folder)
    assert list(drawn) == ["Training loss", "f3crec/replay_size"]


def test_a_run_without_rounds_draws_nothing(tmp_path):
    (tmp_path / "metrics.csv").write_text("round,block\n")
    assert render(tmp_path) == []


@pytest.mark.parametrize("content", [None, ""])
def test_no_table_is_one_clear_line(tmp_path, content):
    if content is not None:
        (tmp_path / "metrics.csv").write_text(content)
    with pytest.raises(UserError, match=r"metrics\.csv is"):
        render(tmp_path)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs wandb_workspaces.*coterie-core\[dashboard\]"):
        workspace.workspace("me", "coterie")


@pytest.mark.filterwarnings("ignore:Pydantic V1 style")
@pytest.mark.parametrize("paper", papers().values(), ids=lambda paper: paper.name)
def test_the_workspace_has_the_panels(paper):
    built = workspace.workspace("me", "mine", paper)
    wanted = workspace.sections(paper)
    assert [section.name for section in built.sections] == [one.title for one in wanted]
    model = built._to_model().model_dump_json(by_alias=True)  # what `save` sends
    assert (built.entity, built.project) == ("me", "mine")
    for panel in (panel for section in wanted for panel in section.panels):
        assert all(f'"{key}"' in model for key in panel.keys)
    assert f'"value":"{paper.name}"' in model  # runs of other papers are left out
    charts = [panel.config.model_dump() for panel in built.sections[0]._to_model().panels]
    grouped = [(one["group_by"], one["group_agg"], one["group_area"]) for one in charts]
    assert set(grouped) == {("method.value", "mean", "stddev")}


def test_the_view_of_all_papers_has_all_panels():
    titles = [section.title for section in workspace.sections()]
    assert titles == [workspace.OVERVIEW, "Federation", *papers()]


def test_a_dry_run_prints_the_view_without_account_network_or_package(monkeypatch, capsys):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["dashboard", "f3crec", "--dry-run", "--project", "mine"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for row in workspace.plan(F3CREC):
        assert row["panel"].split()[0] in text
        assert all(key in text for key in row["y"])
    assert main(["dashboard", "f3crec", "--dry-run", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    compared = [row for row in rows if row["lines"] != "a run"]
    assert {row["section"] for row in compared} == {workspace.OVERVIEW}
    assert ["eval/ndcg@20"] in [row["y"] for row in compared if row["x"] == workspace.SENT]


def test_a_view_needs_an_entity_and_what_wandb_says_is_one_line(monkeypatch, capsys):
    def failing(*given):
        raise RuntimeError("no\nnetwork")

    assert main(["dashboard", "f3crec"]) == 2
    assert "--entity NAME" in capsys.readouterr().err
    monkeypatch.setattr("coterie.core.cli.dashboard.apply", failing)
    assert main(["dashboard", "f3crec", "--entity", "me"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "(no network): say wandb login first" in line
    monkeypatch.setattr("coterie.core.cli.dashboard.apply", lambda *given: "https://" + given[1])
    assert main(["dashboard", "f3crec", "--entity", "me"]) == 0
    assert "Saved: https://coterie" in capsys.readouterr().out


def test_the_sweep_searches_real_settings():
    sweep = yaml.safe_load((ROOT / "configs" / "sweeps" / "f3crec.yaml").read_text())
    assert sweep["command"] == ["coterie", "train", "f3crec", "${args}"]
    assert documented(sweep["metric"]["name"], KEYS)
    for name in sweep["parameters"]:
        settings = Settings()
        for part in name.split("."):
            fields = {field.name for field in dataclasses.fields(settings)}
            assert part in fields, name
            settings = getattr(settings, part)
        space = sweep["parameters"][name]
        if "values" in space:
            assert settings in space["values"], f"the default of {name} is not tried"
        else:
            assert space["min"] <= settings <= space["max"], f"the default of {name} is not tried"


@pytest.mark.filterwarnings("error")
def test_what_is_infinite_is_left_out_of_a_curve(run_folder):
    table = pd.read_csv(run_folder / "metrics.csv")
    table.loc[3, "fed/loss"] = np.inf
    table["f3crec/replay_size"] = np.inf
    table.to_csv(run_folder / "metrics.csv", index=False)
    axes, _ = axes_of(run_folder, F3CREC, NDCG)
    assert "Items replayed by a client" not in axes
    drawn = axes["Training loss"].get_lines()[0].get_ydata()
    assert len(drawn) == 19
    assert np.isfinite(drawn).all()
