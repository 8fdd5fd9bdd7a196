"""What the tables of all papers share: choosing one by number, studies, results on disk."""

import importlib.util
import json
import math
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from coterie.core.data.interactions.canonical import data_digest
from coterie.core.data.interactions.interactions import Features
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper
from coterie.core.settings.configuration import Configuration, Given
from coterie.core.settings.sections import DataSettings, RunSettings
from coterie.core.tables.catalogue import Catalogue
from coterie.core.tables.dots import Dots
from coterie.core.tables.paired import spread
from coterie.core.tables.result import RunResult, column
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.study import BackboneStudy, Study, fingerprint

HERE = __name__


@dataclass(frozen=True)
class Model:
    name: str = "small"


@dataclass(frozen=True)
class Settings:
    method: str = "own"
    seed: int = 0
    lr: float = 0.5
    model: Model = field(default_factory=Model)
    data: DataSettings = field(default_factory=DataSettings)
    run: RunSettings = field(default_factory=RunSettings)


def work(settings):
    return RunResult(
        {"x": settings.lr * settings.seed, "y": math.nan},
        found={"why": None, "method": settings.method},
    )


def counted(settings):
    return RunResult({"x": 10.0 * settings.seed})


class ToyStudy(Study):
    paper = Paper("toy", "toy", "Toys", "", (), f"{HERE}:Settings", "")
    names: ClassVar = {"own": "Own"}
    digest = "data"
    train, references = work, {"counted by hand": counted}

    def essential(settings):
        return settings


class ToyBackbones(BackboneStudy, ToyStudy):
    backbone_names: ClassVar = {"small": "Small", "large": "Large"}


def toy_table(study):
    (values,) = study.methods("Table 2", study.settings, ["own"]).values()
    sheet = Sheet(study, "so")
    line = sheet.line(method=study.name_of("own"))
    sheet.cell(line, "X", "own", "x", column(values, "x"), paper=2.0, size="big")
    return sheet.report("Table 2", "toys")


def toy_figure(study):
    raise AssertionError


def configuration(tmp_path, data="ml-100k", **flags):
    settings = Settings(data=DataSettings(name=data), run=RunSettings(out=str(tmp_path)))
    return Configuration(settings, (), (), Given(flags=flags))


def study_of(tmp_path, kind=ToyStudy, seeds=(2, 0), **changes):
    return kind(configuration(tmp_path, **changes), seeds, 0)


CATALOGUE = Catalogue(
    "toy",
    f"{HERE}:ToyStudy",
    tables=dict.fromkeys((2, 3, 4, 5), f"{HERE}:toy_table"),
    figures=dict.fromkeys((1, 4), f"{HERE}:toy_figure"),
    elsewhere={1: "table 1 is of the data"},
    seeds=(0, 1),
)


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ({"table": 6}, "toy has no table 6: choose 2 to 5"),
        ({"table": 1}, "table 1 is of the data"),
        ({"figure": 2}, "figure 2 of toy shows no results: choose 1 or 4"),
        ({}, "name a table or a figure, as --table 2"),
        ({"table": 2, "figure": 1}, "name a table or a figure, as --table 2"),
        ({"table": 2, "seeds": ()}, "a table needs a seed: give --seeds a number above 0"),
    ],
)
def test_what_cannot_be_made_is_one_clear_line(tmp_path, which, message):
    with pytest.raises(UserError) as error:
        CATALOGUE.make_table(configuration(tmp_path), **which)
    assert str(error.value) == message


def test_a_paper_may_have_only_figures(tmp_path):
    figures = Catalogue("toy", "", figures={3: ""})
    with pytest.raises(UserError, match="as --figure 3"):
        figures.make_table(configuration(tmp_path))
    with pytest.raises(UserError, match="no table 3: choose another"):
        figures.make_table(configuration(tmp_path), table=3)


def test_a_variant_may_have_a_table_of_its_own(tmp_path):
    own = replace(CATALOGUE, variants={"best": f"{HERE}:toy_table"})
    best = replace(configuration(tmp_path), given=Given(flags={}, variant="best"))
    assert own.make_table(best, workers=0).view[0]["method"] == "Own"
    with pytest.raises(UserError, match="figure 4 of toy is of the paper's methods, and variant"):
        own.make_table(best, figure=4)
    with pytest.raises(UserError, match="name a table or a figure"):
        own.make_table(configuration(tmp_path))
    assert CATALOGUE.make_table(best, table=3, workers=0).rows  # it has none there


def test_a_table_is_chosen_by_number_and_every_seed_counts_once(tmp_path):
    report = CATALOGUE.make_table(configuration(tmp_path), table=3, seeds=[4, 2, 4], workers=0)
    (row,) = report.rows
    assert (row["mean"], row["seeds"], row["data"]) == (1.5, 2, "ml-100k")
    assert row["sd"] == pytest.approx(math.sqrt(0.5))
    assert (report.name, report.title) == ("table2-ml-100k", "Table 2, ml-100k: toys, 2 seeds")
    assert (row["method"], row["metric"], row["paper"], row["size"]) == ("own", "x", 2.0, "big")
    assert report.view == [{"method": "Own", "X": "1.5000 ± 0.7071 (2.0000)"}]
    assert list(report.notes) == ["so"]
    default = CATALOGUE.make_table(configuration(tmp_path), table=3, workers=0)
    assert default.rows[0]["mean"] == 0.25


def test_naming_the_tables_imports_no_torch():
    code = "import sys, coterie.core.tables.catalogue; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_results_come_in_the_order_of_the_seeds_and_from_the_cache(tmp_path, monkeypatch):
    study = study_of(tmp_path)
    found = study.run_all("x", {1: Settings(data=study.settings.data), "b": study.settings})
    assert column(found["b"], "x") == [1.0, 0.0]
    cache = tmp_path / "toy" / "tables" / "cache"
    names = {path.name.rsplit("-", 1)[0] for path in cache.iterdir()}
    assert names == {"ml-100k-own-s0", "ml-100k-own-s2"}
    monkeypatch.setattr(ToyStudy, "train", None)
    again = study.methods("x", study.settings, ["own"])
    assert column(again["own"], "x") == [1.0, 0.0]


def test_a_reference_is_made_in_its_own_way_and_kept_beside_the_runs(tmp_path):
    found = study_of(tmp_path).rows_without("x", ["counted by hand", "own"])
    assert {name: column(part, "x") for name, part in found.items()} == {
        "counted by hand": [20.0, 0.0],
        "own": [1.0, 0.0],
    }
    cache = tmp_path / "toy" / "tables" / "cache"
    names = {path.name.rsplit("-", 1)[0] for path in cache.iterdir()}
    assert names == {f"ml-100k-{what}-s{s}" for what in ("counted-by-hand", "own") for s in (0, 2)}


def test_a_missing_number_is_nan_or_none_as_the_field_says(tmp_path):
    work(Settings()).write(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["metrics"] == {"x": 0.0, "y": None}
    found = RunResult.read(tmp_path / "r.json")
    assert math.isnan(found.metrics["y"])
    assert found.found == {"why": None, "method": "own"}


def test_a_curve_has_a_number_for_every_round():
    result = RunResult(chosen_by="b")
    for scalars in ({"a": 1.0}, {"a": 2.0, "b": 3.0}, {"b": 5.0}, {"b": 5.0}):
        result.note(scalars)
    assert result.curve("a") == pytest.approx([1.0, 2.0, math.nan, math.nan], nan_ok=True)
    assert result.curve("b") == pytest.approx([math.nan, 3.0, 5.0, 5.0], nan_ok=True)
    assert (result.measured, result.best_round, result.rounds) == ([2, 3, 4], 3, 4)


def test_a_file_of_data_gives_its_name_to_files(tmp_path):
    study = study_of(tmp_path, data="/some where/my films.csv")
    assert study.file("table1") == "table1-my-films"


def test_a_study_is_of_all_backbones_or_the_one_that_is_named(tmp_path):
    study = study_of(tmp_path, ToyBackbones)
    assert study.backbones == ("small", "large")
    assert study.file("table1") == "table1-ml-100k"
    assert study.tuned("small") is study.settings
    one = study_of(tmp_path, ToyBackbones, **{"model.name": "small"})
    assert one.backbones == ("small",)
    assert one.file("table1") == "table1-ml-100k-small"


def test_the_digest_of_data_tells_ratings_profiles_and_organisations():
    data = generate()
    profiles = Features(1 - data.user_features.values, data.user_features.names)
    others = [
        replace(data, rating=data.rating.flip(0)),
        replace(data, user_features=profiles),
        replace(data, user_features=None),
        replace(data, domains=["a"] * data.n_items),
        replace(data, time=data.time + 1),
    ]
    assert data_digest(generate()) == data_digest(data)
    assert len({data_digest(one) for one in (data, *others)}) == 6


def test_a_figure_is_an_image_beside_its_numbers(tmp_path):
    study = study_of(tmp_path, seeds=(0,))
    panel = Dots("y", {"small": {"own": spread([1.0, 2.0])}})
    report = Sheet(study).report("Figure 4", "toys", [panel])
    assert (report.name, report.title) == ("figure4-ml-100k", "Figure 4, ml-100k: toys, 1 seed")
    assert report.figure == study.folder / "figure4-ml-100k.png"
    assert report.figure.read_bytes().startswith(b"\x89PNG")
    assert Sheet(study).report("Figure 4", "toys", seeds=False).title == "Figure 4, ml-100k: toys"


def test_what_is_not_a_number_is_left_out_of_a_cell():
    assert cell([0.5, math.nan, 0.7], 0.25, digits=1, scale=10) == "6.0 ± 1.4 (2.5)"
    assert cell([math.nan], 0.25) == "-"


def test_a_result_depends_on_the_code_of_its_own_package(tmp_path, monkeypatch):
    def mark(version, folder, **files):
        (tmp_path / folder).mkdir()
        text = (
            "from dataclasses import dataclass\n@dataclass\nclass Settings:\n    lr: float = 1.0\n"
        )
        for name, content in {"settings": text, **files}.items():
            place = tmp_path / folder / f"{name.replace('__', '/')}.py"
            place.parent.mkdir(exist_ok=True)
            place.write_text(content)
        spec = importlib.util.spec_from_file_location(folder, tmp_path / folder / "settings.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, folder, module)
        spec.loader.exec_module(module)
        return fingerprint(module.Settings(), version)

    same = mark("1", "a", model="x = 1")
    assert mark("1", "b", model="x = 1", tables__main="y = 1") == same
    assert mark("1", "c", model="x = 2") != same
    assert mark("1", "e", model="x = 1", tables__study="y = 1") != same
    assert mark("2", "d", model="x = 1") != same
    assert len(same) == 16
