"""The wheels of coterie-core and coterie-llm alone, in an environment outside the checkout."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.test_packaging import ROOT, build_wheel

CONSTRAINTS = ROOT / "constraints.txt"


def run(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run without anything of the environment that points to other packages or accounts."""
    hidden = ("PYTHON", "VIRTUAL_ENV", "WANDB_", "COTERIE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return subprocess.run(
        command, cwd=cwd, env=kept | env, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that goes at the end: pytest would keep gigabytes for three runs."""
    made = tmp_path_factory.mktemp("installed")
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def installed(folder: Path) -> Path:
    """Programs of a new environment with both wheels and what they require."""
    wheels = [build_wheel(ROOT / source, folder / source) for source in ("shared", "packages/llm")]
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
def test_pplr_trains_where_only_its_wheels_are(installed: Path, tmp_path: Path) -> None:
    where = "import coterie.core, coterie.llm; print(coterie.core.__file__, coterie.llm.__file__)"
    modules = run(installed / "python", "-c", where, cwd=tmp_path).stdout.split()
    assert [Path(module).is_relative_to(installed.parent) for module in modules] == [True, True]
    listed = run(installed / "coterie", "list", cwd=tmp_path).stdout
    assert "pplr" in listed
    assert "f3crec" not in listed
    done = run(
        installed / "coterie", "train", "pplr", "--rounds", "1", cwd=tmp_path, HOME=str(tmp_path)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [summary] = tmp_path.glob("runs/pplr/*/summary.json")
    found = json.loads(summary.read_text())
    assert found["rounds"] == 1
    assert all(map(math.isfinite, found["metrics"].values()))
    assert 0 < found["metrics"]["test/recall@10"] < 1
    assert list(summary.parent.glob("wandb/offline-run-*/*.wandb"))
