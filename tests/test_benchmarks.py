"""The benchmarks of the repository are found from any folder, and measured in processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.core.cli.papers import clone_of
from coterie.core.registry.papers import papers

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = ("f3crec", "mtal", "page", "pf-msmtrec", "pplr")
SOURCES = [ROOT / "shared/src", *sorted(ROOT.glob("packages/*/src"))]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with benchmarks of its own, as a user's project has it."""
    own = tmp_path / "benchmarks" / "core"
    own.mkdir(parents=True)
    for folder in (own.parent, own):
        (folder / "__init__.py").write_text("raise RuntimeError('not these')\n")
    return tmp_path


def python(code: str, cwd: Path, *words: str) -> str:
    """Run code that has the sources on its path, as an editable installation has them."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PYTHONPATH"] = os.pathsep.join(map(str, SOURCES))
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_paper_of_the_repository_names_one_of_its_benchmarks() -> None:
    named = {name: papers()[name].bench or "" for name in REPOSITORY}
    files = {
        name: f"{bench.partition(':')[0].replace('.', '/')}.py" for name, bench in named.items()
    }
    assert [name for name, file in files.items() if not (ROOT / file).is_file()] == []
    assert all(bench.startswith("benchmarks.") for bench in named.values())


@pytest.mark.long
def test_they_are_found_from_any_folder(elsewhere: Path) -> None:
    code = (
        "import json, sys\n"
        "from coterie.core.cli.papers import reach\n"
        "from coterie.core.registry.papers import load, papers\n"
        "found = []\n"
        "for name in sys.argv[1:]:\n"
        "    reach(papers()[name])\n"
        "    found.append(load(papers()[name].bench).__code__.co_filename)\n"
        "print(json.dumps(found))"
    )
    found = [Path(file) for file in json.loads(python(code, elsewhere, *REPOSITORY))]
    assert {file.parents[1] for file in found} == {ROOT / "benchmarks"}
    assert {file.name for file in found} == {"measure.py"}


@pytest.mark.long
def test_the_command_measures_in_processes_that_find_them_too(elsewhere: Path) -> None:
    code = (
        "import sys\n"
        "from coterie.core.cli import main, papers as commands\n"
        "from coterie.core.registry.papers import papers\n"
        "commands.reach(papers()['page'])\n"
        "import benchmarks.page.measure as measure\n"
        "def few(settings):\n"
        "    yield from measure.memory(settings, 20, ['fedavg'])\n"
        "measure.bench = few\n"
        "sys.exit(main.main(['bench', 'page', '--json']))"
    )
    [row] = json.loads(python(code, elsewhere))
    assert list(row) == ["name", "unit", "ours", "reference", "ratio", "max_abs_diff"]
    assert row["ours"] > 0
    assert (elsewhere / "runs/page/bench/bench.md").is_file()


def test_a_clone_is_known_by_its_folders(tmp_path: Path) -> None:
    core = tmp_path / "shared/src/coterie/core"
    core.mkdir(parents=True)
    assert clone_of(core) is None  # there is nothing to measure with
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/__init__.py").touch()
    assert clone_of(core) == tmp_path
    assert clone_of(tmp_path / ".venv/lib/python3.11/site-packages/coterie/core") is None
    assert clone_of(Path("/core")) is None
