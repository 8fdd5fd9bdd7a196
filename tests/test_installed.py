"""The wheels of coterie-core and one paper alone, in an environment outside the checkout."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.test_packaging import ROOT, build_wheel

CONSTRAINTS = ROOT / "constraints.txt"
PAPERS = {"llm": "pplr", "page": "page", "assisted": "mtal", "msmt": "pf-msmtrec"}
MEASURED = {
    "llm": ("test/recall@10",),
    "page": ("test/server_accuracy", "test/global_accuracy", "test/personal_accuracy"),
    "assisted": ("test/rmse", "test/map@10", "test/ndcg@10"),
    "msmt": ("test/auc", "test/auc_ctr", "test/auc_ctcvr"),
}


@dataclass(frozen=True)
class Installed:
    """Programs of a new environment with the wheels of core and one package."""

    package: str
    programs: Path

    @property
    def paper(self) -> str:
        return PAPERS[self.package]


def run(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run without anything of the environment that points to other packages or accounts."""
    hidden = ("PYTHON", "VIRTUAL_ENV", "WANDB_", "COTERIE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return subprocess.run(
        command, cwd=cwd, env=kept | env, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module", params=PAPERS)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    """One environment at a time; it goes at its end: pytest would keep gigabytes for three runs."""
    folder = tmp_path_factory.mktemp(request.param)
    try:
        yield Installed(request.param, install(request.param, folder))
    finally:
        shutil.rmtree(folder)


def install(package: str, folder: Path) -> Path:
    """Make an environment of both wheels and what they require; return its `bin`."""
    sources = ("shared", f"packages/{package}")
    wheels = [build_wheel(ROOT / source, folder / source) for source in sources]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    programs = folder / "venv" / "bin"
    pip: list[str | Path] = [programs / "python", "-m", "pip", "--disable-pip-version-check"]
    how: list[str | Path] = ["--quiet", "--constraint", CONSTRAINTS, "--find-links", folder]
    asked = run(*pip, "download", *how, "--no-deps", "torch", "--dest", folder, cwd=folder)
    if asked.returncode:
        why = next((line for line in asked.stderr.splitlines() if "ERROR" in line), "")
        pytest.skip(f"pip can reach no index with the torch of constraints.txt: {why}")
    done = run(*pip, "install", *how, "--no-compile", *wheels, cwd=folder)
    assert done.returncode == 0, done.stderr
    return programs


@pytest.mark.slow
def test_environment_holds_the_wheels_and_nothing_else_of_coterie(
    installed: Installed, tmp_path: Path
) -> None:
    checked = run(installed.programs / "python", "-m", "pip", "check", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    names = ["coterie.core", f"coterie.{installed.package}"]
    where = f"import {', '.join(names)}; print({', '.join(f'{n}.__file__' for n in names)})"
    modules = run(installed.programs / "python", "-c", where, cwd=tmp_path).stdout.split()
    venv = installed.programs.parent
    assert [Path(module).is_relative_to(venv) for module in modules] == [True, True]
    listed = run(installed.programs / "coterie", "list", cwd=tmp_path, COLUMNS="200")
    assert listed.returncode == 0, listed.stderr
    lines = listed.stdout.splitlines()
    known = ("f3crec", *PAPERS.values())
    named = {paper for paper in known if any(line.startswith(f"{paper}: ") for line in lines)}
    assert named == {installed.paper}


@pytest.mark.slow
def test_benchmarks_need_a_clone(installed: Installed, tmp_path: Path) -> None:
    done = run(installed.programs / "coterie", "bench", installed.paper, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(r"coterie: error: .*git clone it, .*make bench PAPER=\S+\n", done.stderr)


@pytest.mark.slow
def test_paper_trains_where_only_its_wheels_are(installed: Installed, tmp_path: Path) -> None:
    command = (installed.programs / "coterie", "train", installed.paper, "--rounds", "2")
    done = run(*command, cwd=tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    [summary] = tmp_path.glob(f"runs/{installed.paper}/*/summary.json")
    found = json.loads(summary.read_text())
    assert found["rounds"] == 2
    assert all(map(math.isfinite, found["metrics"].values()))
    for name in MEASURED[installed.package]:
        assert 0 < found["metrics"][name] <= 1, name
    assert (summary.parent / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list(summary.parent.glob("wandb/offline-run-*/*.wandb"))
