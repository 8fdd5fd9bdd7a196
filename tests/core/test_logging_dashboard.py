"""The dashboard's panels, the documentation of keys and the sweep file."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.image import imread

from coterie.continual.settings import Settings
from coterie.core.callbacks import dashboard
from coterie.core.callbacks.keys import CLIENT_MEASURES, KEYS, documented
from coterie.core.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
PANELS = [panel for section in dashboard.SECTIONS for panel in section.panels]


def test_every_panel_shows_documented_keys():
    for panel in PANELS:
        assert all(documented(key) for key in (*panel.keys, panel.x)), panel


def test_the_documentation_lists_exactly_the_keys():
    text = (ROOT / "docs" / "wandb.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \| (.+?) \|$", text, flags=re.MULTILINE)
    documented_there = {name: (unit, meaning) for name, unit, meaning in rows}
    assert documented_there == {key.name: (key.unit, key.meaning) for key in KEYS}
    assert all(f"`{name}`" in text for name in CLIENT_MEASURES)


@pytest.fixture
def run_folder(tmp_path):
    lines = ["round,block,fed/loss,eval/ndcg@20,cost/up_bytes_total,f3crec/replay_size,empty/key"]
    for r in range(1, 21):
        ndcg = 0.01 * r if r % 5 == 0 else ""
        lines.append(f"{r},{(r - 1) // 10},{1 / r},{ndcg},{100 * r},{r % 7},")
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_curves_are_drawn_from_the_csv(run_folder):
    [path] = dashboard.render(run_folder)
    assert path == run_folder / "curves.png"
    image = imread(path)
    assert image.shape[0] > 400
    assert image.shape[1] > 1000
    assert np.unique(image.reshape(-1, image.shape[-1]), axis=0).shape[0] > 20
    assert sorted(p.name for p in run_folder.iterdir()) == ["curves.png", "metrics.csv"]


def test_lines_have_the_measured_points_only(run_folder, monkeypatch):
    drawn = {}

    def draw(ax, panel, table):
        original(ax, panel, table)
        drawn[panel.title] = ax.get_lines()

    original = dashboard._draw
    monkeypatch.setattr(dashboard, "_draw", draw)
    dashboard.render(run_folder)
    assert set(drawn) == {
        "NDCG@20: mean and worst tenth",
        "NDCG@20 against bytes sent",
        "Training loss",
        "Block",
        "f3crec/replay_size",
    }
    curve = drawn["NDCG@20 against bytes sent"][0]
    assert curve.get_xdata().tolist() == [500, 1000, 1500, 2000]
    assert curve.get_ydata().tolist() == pytest.approx([0.05, 0.1, 0.15, 0.2])
    block_start = drawn["Training loss"][1]
    assert list(block_start.get_xdata()) == [11, 11]


def test_an_only_block_has_no_panel(run_folder, monkeypatch):
    table = pd.read_csv(run_folder / "metrics.csv")
    table.assign(block=0).to_csv(run_folder / "metrics.csv", index=False)
    drawn = []
    monkeypatch.setattr(dashboard, "_draw", lambda ax, panel, table: drawn.append(panel.title))
    dashboard.render(run_folder)
    assert "Training loss" in drawn
    assert "Block" not in drawn


def test_a_run_without_rounds_draws_nothing(tmp_path):
    (tmp_path / "metrics.csv").write_text("round,block\n")
    assert dashboard.render(tmp_path) == []


@pytest.mark.parametrize("content", [None, ""])
def test_no_table_is_one_clear_line(tmp_path, content):
    if content is not None:
        (tmp_path / "metrics.csv").write_text(content)
    with pytest.raises(UserError, match=r"metrics\.csv is"):
        dashboard.render(tmp_path)


def test_a_missing_package_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="wandb_workspaces")

    monkeypatch.setattr(dashboard, "import_module", missing)
    with pytest.raises(UserError, match="pip install wandb-workspaces"):
        dashboard.workspace("me", "coterie")


def test_the_workspace_has_the_panels():
    pytest.importorskip("wandb_workspaces", reason="wandb-workspaces is optional")
    more = [dashboard.Section("F3CRec", (dashboard.Panel("Replay", ("f3crec/replay_size",)),))]
    built = dashboard.workspace("me", "coterie", more)
    assert [section.name for section in built.sections] == [
        *(section.title for section in dashboard.SECTIONS),
        "F3CRec",
    ]
    model = built._to_model().model_dump_json(by_alias=True)  # what `save` sends
    for panel in PANELS:
        assert all(f'"{key}"' in model for key in panel.keys)


def test_the_sweep_searches_real_settings():
    sweep = yaml.safe_load((ROOT / "configs" / "sweeps" / "f3crec.yaml").read_text())
    assert sweep["command"] == ["coterie", "train", "f3crec", "${args}"]
    assert documented(sweep["metric"]["name"])
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
