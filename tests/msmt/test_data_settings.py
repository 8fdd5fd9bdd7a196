"""The section ``data`` of PF-MSMTrec: ranges, settings without effect, names."""

import subprocess
import sys

import pytest
from tests.parsing import parse

from coterie.core.errors import UserError
from coterie.core.registry.data_sets import data_set, data_sets
from coterie.core.registry.papers import load
from coterie.core.tensors.keys import Key
from coterie.msmt.data.make import READERS, make_task
from coterie.msmt.data_sets import DATA_SETS, OPTIONS, is_file_name
from coterie.msmt.settings import ScenarioData, Settings

OWN = {"name": "my.csv", "scenario": "country", "tasks": ("click",)}

RANGES = [
    ({"name": "world", "shift": 1.2}, "'data.shift' must be at most 1, not 1.2"),
    ({"name": "world", "shift": -0.1}, "'data.shift' must be at least 0, not -0.1"),
    ({"name": "world", "cov_shift": 2.0}, "'data.cov_shift' must be at most 1, not 2"),
    ({"name": "world", "rho": -1.5}, "'data.rho' must be from -1 to 1, not -1.5"),
    ({"name": "world", "snr": 0.0}, "'data.snr' must be above 0"),
    ({"name": "world", "rows": ()}, "'data.rows' must be numbers of samples, each at least 1"),
    ({"name": "world", "rows": (5, 0)}, "'data.rows' must be numbers of samples"),
    ({"name": "teacher", "test_rows": 0}, "'data.test_rows' must be at least 1, not 0"),
    ({"name": "world", "valid_rows": 0}, "'data.valid_rows' must be at least 1, not 0"),
    ({"name": "ml-1m", "samples": 0}, "'data.samples' must be at least 1, not 0"),
    ({"name": "ml-1m", "valid": 0.0}, "'data.valid' must be above 0 and at most 0.4, not 0"),
    ({"name": "ml-1m", "test": 0.7}, "'data.test' must be above 0 and at most 0.4, not 0.7"),
    ({"name": "ml-1m", "scenario": "Gender"}, "is one of gender, age, not 'Gender': did you mean"),
    ({"name": "census-income", "scenario": "age"}, "is one of worker, race, sex, not 'age'"),
    ({"name": "my.csv", "scenario": "a"}, r"my.csv is a file: .* \('data.tasks' is missing\)"),
    ({"name": "my.csv", "tasks": ("a",)}, r"my.csv is a file: .* \('data.scenario' is missing\)"),
    (OWN | {"numbers": ("click",)}, "column 'click' has two roles"),
    (OWN | {"split": "country"}, "column 'country' has two roles"),
    (OWN | {"tasks": ("click", "click")}, "column 'click' has two roles"),
]


@pytest.mark.parametrize(("given", "what"), RANGES, ids=[what for _, what in RANGES])
def test_values_out_of_range_are_refused(given, what):
    with pytest.raises(UserError, match=what):
        ScenarioData(**given)


IDLE = [
    ({"shift": 0.5}, "'data.shift' has no effect with the data set sample: leave it out"),
    ({"scenario": "age"}, "'data.scenario' has no effect with the data set sample"),
    ({"name": "teacher", "cov_shift": 0.5}, "'data.cov_shift' has no effect .* teacher"),
    ({"name": "world", "valid": 0.2}, "'data.valid' has no effect with the data set world"),
    ({"name": "world", "samples": 5}, "'data.samples' has no effect with the data set world"),
    ({"name": "ml-1m", "shift": 0.2}, "'data.shift' has no effect with the data set ml-1m"),
    ({"name": "ml-1m", "tasks": ("a",)}, "'data.tasks' has no effect with the data set ml-1m"),
    ({"name": "ml-1m", "rows": (5,)}, "'data.rows' has no effect with the data set ml-1m"),
    (OWN | {"rho": 0.1}, "'data.rho' has no effect with the data set my.csv"),
    (OWN | {"split": "s", "test": 0.2}, "'data.test' has no effect with data.split"),
    (OWN | {"paper_protocol": True, "valid": 0.2}, "'data.valid' has no .* data.paper_protocol"),
    ({"name": "world", "paper_protocol": True, "valid_rows": 9}, "'data.valid_rows' has no effect"),
]


@pytest.mark.parametrize(("given", "what"), IDLE, ids=[what for _, what in IDLE])
def test_settings_without_effect_are_refused(given, what):
    with pytest.raises(UserError, match=what):
        ScenarioData(**given)


def test_what_is_right_is_taken():
    ScenarioData(name="world", shift=0.0, cov_shift=1.0, rho=-1.0, rows=(5,), paper_protocol=True)
    ScenarioData(name="teacher", shift=1.0, rho=1.0, snr=2.0, valid_rows=1, test_rows=1)
    ScenarioData(name="census-income", scenario="race", valid=0.4, test=0.4, samples=10)
    ScenarioData(**OWN, categories=("a",), numbers=("b",), split="c", samples=4)
    ScenarioData(name="not-known", shift=0.5)  # whoever reads it says that there is no such set


def test_flags():
    words = "--data my.csv --data.scenario country --data.tasks [click,buy] --data.numbers [price]"
    found = parse(Settings, words.split()).data
    assert (found.name, found.scenario) == ("my.csv", "country")
    assert (found.tasks, found.numbers) == (("click", "buy"), ("price",))
    words = "--data world --data.rows [10,20] --data.shift 0.9"
    found = parse(Settings, words.split()).data
    assert (found.rows, found.shift) == ((10, 20), 0.9)


def test_unknown_names_and_files():
    with pytest.raises(UserError, match=r"'wrld' is neither a data set .* did you mean 'world'"):
        make_task(ScenarioData(name="wrld"), Key.from_seed(0))
    assert is_file_name("a.parquet")
    assert not any(map(is_file_name, OPTIONS))


def test_every_data_set_is_known_and_can_be_read():
    assert {entry.name for entry in DATA_SETS} <= set(OPTIONS)
    for entry in DATA_SETS:
        assert data_sets()[entry.name] is entry
        assert entry.kind == "samples"
        assert not entry.files or callable(load(entry.reader))
    for name, reader in READERS.items():
        assert callable(load(reader))
        assert data_set(name).files
        assert name in OPTIONS


def test_settings_import_no_torch():
    code = "import sys, coterie.msmt.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
