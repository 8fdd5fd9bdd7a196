"""Published sets by name: from the files in their folders to tasks, and their counts."""

import shutil

import pytest

from coterie.core.cli import data
from coterie.core.data.sources.catalogue import sample_counts
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data.make import READERS, make_task
from coterie.msmt.settings import ScenarioData

KEY = Key.from_seed(0)
SAMPLES = {  # of the public samples: rows, scenarios, tasks
    "ali-ccp": (200, 3, ("click", "purchase")),
    "kuairand": (200, 1, ("click", "long_view")),
    "mind": (8000, 4, ("click",)),
    "douban": (3000, 3, ("rating",)),
    "aliexpress": (120, 1, ("ctr", "ctcvr")),
}


@pytest.fixture
def root(data_root, tmp_path):
    """Folder of data sets made of the public samples."""
    source = data_root / "mtms-samples"
    if not source.is_dir():
        pytest.skip(f"needs mtms-samples in {data_root}")
    for name in SAMPLES:
        folder = tmp_path / name
        folder.mkdir()
        for path in source.glob(f"{name.replace('-', '_')}_*.csv"):
            shutil.copy(path, folder / path.name)
    country = tmp_path / "aliexpress" / "AliExpress_NL"
    country.mkdir()
    for part in ("train", "test"):
        path = tmp_path / "aliexpress" / f"aliexpress_{part}_sample.csv"
        path.rename(country / f"{part}.csv")
    return tmp_path


@pytest.mark.real_data
@pytest.mark.parametrize("name", SAMPLES)
def test_public_samples_by_name(root, name):
    n, n_scenarios, tasks = SAMPLES[name]
    task = make_task(ScenarioData(name=name, root=str(root)), KEY)
    assert task.schema.tasks == tasks
    assert task.schema.n_scenarios == n_scenarios
    parts = (task.clients.train, task.clients.valid, task.clients.test)
    assert sum(int(part.lengths.sum()) for part in parts) == n
    if name != "douban":  # whose name core has for its interactions
        rows = sample_counts(name, root)
        assert sum(row["samples"] for row in rows) == n
        assert [row["part"] for row in rows] == list(task.schema.scenarios)


@pytest.mark.real_data
def test_counts_are_printed(root, capsys):
    data.run_data(["ali-ccp", "--data_root", str(root), "--json"])
    assert capsys.readouterr().out.count('"part": "position') == 3


def test_absent_sets_say_what_to_put_where(tmp_path):
    for name in READERS:
        if name != "ml-1m":  # which would be fetched
            with pytest.raises(UserError, match=rf"put .* into {tmp_path}/{name}"):
                make_task(ScenarioData(name=name, root=str(tmp_path)), KEY)
