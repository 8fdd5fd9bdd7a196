"""What the tables of all papers share: choosing one by number, studies, results on disk."""

import importlib.util
import json
import math
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper
from coterie.core.settings.configuration import Configuration, Given
from coterie.core.settings.sections import DataSettings, RunSettings
from coterie.core.tables.backbones import BackboneStudy
from coterie.core.tables.catalogue import Catalogue
from coterie.core.tables.figures import figure_report
from coterie.core.tables.fingerprint import fingerprint
from coterie.core.tables.jobs import Job
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Bars
from coterie.core.tables.report import Report
from coterie.core.tables.result import Result
from coterie.core.tables.study import Study

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


@dataclass
class Found(Result):
    with_none = ("notes",)

    scores: dict[str, list[float]]
    notes: dict[str, str | None]


def work(settings, path):
    scores = {"x": [settings.lr * settings.seed, math.nan]}
    Found(scores, {"why": None, "method": settings.method}).write(path)


class ToyStudy(Study):
    paper = Paper("toy", "toy", "Toys", "", (), f"{HERE}:Settings", "")
    result = Found
    digest = "data"

    def job(self, settings):
        return Job(self.path(f"{settings.method}-s{settings.seed}", settings), work, settings)


class ToyBackbones(BackboneStudy, ToyStudy):
    all_backbones = ("small", "large")


def toy_table(study):
    (values,) = study.methods("Table 2", study.settings, ["own"]).values()
    rows = [study.row("own", "x", [found.scores["x"][0] for found in values], None)]
    return Report(study.file("table2"), f"Toys, {study.n_seeds}", rows)


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


def test_a_table_is_chosen_by_number_and_every_seed_counts_once(tmp_path):
    report = CATALOGUE.make_table(configuration(tmp_path), table=3, seeds=[4, 2, 4], workers=0)
    (row,) = report.rows
    assert (row["mean"], row["seeds"], row["data"]) == (1.5, 2, "ml-100k")
    assert row["sd"] == pytest.approx(math.sqrt(0.5))
    assert (report.name, report.title) == ("table2-ml-100k", "Toys, 2 seeds")
    default = CATALOGUE.make_table(configuration(tmp_path), table=3, workers=0)
    assert default.rows[0]["mean"] == 0.25


def test_naming_the_tables_imports_no_torch():
    code = "import sys, coterie.core.tables.catalogue; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_results_come_in_the_order_of_the_seeds_and_from_the_cache(tmp_path, monkeypatch):
    study = study_of(tmp_path)
    found = study.run_all("x", {1: Settings(data=study.settings.data), "b": study.settings})
    assert [one.scores["x"][0] for one in found["b"]] == [1.0, 0.0]
    cache = tmp_path / "toy" / "tables" / "cache"
    names = {path.name.rsplit("-", 1)[0] for path in cache.iterdir()}
    assert names == {"ml-100k-own-s0", "ml-100k-own-s2"}
    monkeypatch.setattr(f"{HERE}.work", None)
    again = study.methods("x", study.settings, ["own"])
    assert [one.scores["x"][0] for one in again["own"]] == [1.0, 0.0]


def test_a_missing_number_is_nan_or_none_as_the_field_says(tmp_path):
    work(Settings(), tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["scores"] == {"x": [0.0, None]}
    found = Found.read(tmp_path / "r.json")
    assert math.isnan(found.scores["x"][1])
    assert found.notes == {"why": None, "method": "own"}


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


def test_a_figure_is_an_image_beside_its_numbers(tmp_path):
    study = study_of(tmp_path, seeds=(0,))
    panel = Bars("y", {"small": {"own": spread([1.0, 2.0])}})
    report = figure_report(study, "figure4", "Toys", ([{"a": 1}], []), ["so"], [panel])
    assert (report.name, report.title) == ("figure4-ml-100k", "Toys, 1 seed")
    assert report.figure == study.folder / "figure4-ml-100k.png"
    assert report.figure.read_bytes().startswith(b"\x89PNG")


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
    assert mark("2", "d", model="x = 1") != same
    assert len(same) == 16
