"""What `make` says before anything is installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as from a shell, not as a child of the `make test` that may run this."""
    clean = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=clean)


def dry(*arguments: str) -> str:
    """Return the commands that would run were everything installed."""
    done = make("--dry-run", "--old-file=.venv/.installed", *arguments)
    assert done.returncode == 0, done.stderr
    return re.sub(r"\s*\\?\n\s*|\s+", " ", done.stdout)


def test_help_lists_every_target() -> None:
    targets = re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = re.findall(r"^  (\S+) +\S", make("help").stdout, re.MULTILINE)
    assert listed == targets
    assert {"setup", "train", "test", "bench", "table", "sweep"} <= set(targets)


@pytest.mark.parametrize("target", ["train", "table", "sweep"])
def test_missing_paper_is_one_line_with_the_remedy(target: str) -> None:
    done = make(target)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "***" in line]
    assert "PAPER is missing" in line
    assert f"make {target} PAPER=f3crec" in line
    assert "Installing" not in done.stdout


def test_train_passes_what_is_named_and_nothing_else() -> None:
    assert dry("train", "PAPER=f3crec").strip().endswith(".venv/bin/coterie train f3crec")
    named = dry("train", "PAPER=f3crec", "DATA=ml-100k", "SEED=0", "ARGS=--algorithm.beta 0.9")
    assert named.strip().endswith("train f3crec --data ml-100k --seed 0 --algorithm.beta 0.9")
    assert "--preset smoke" in dry("train", "PAPER=f3crec", "PRESET=smoke")


def test_what_installs_an_extra_later_leaves_the_core_editable() -> None:
    texts = [(ROOT / name).read_text() for name in ("Makefile", "Dockerfile")]
    found = [re.findall(r"(\S+) \"\./shared\[\w+\]\"", text) for text in texts]
    assert found == [["-e"], ["-e"]]  # a copy would hide every later change of the source


def test_old_interpreter_is_named_before_installing(tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make("setup", f"PYTHON={old}", "--assume-new=constraints.txt")
    assert done.returncode == 2
    assert "needs Python 3.11" in done.stderr
    assert "Installing" not in done.stdout


def test_tools_that_cannot_be_had_leave_what_was_installed(tmp_path: Path) -> None:
    installed, unfinished = (tmp_path / ".venv" / name for name in (".installed", ".installing"))
    installed.parent.mkdir()
    installed.touch()
    there = (f"--directory={tmp_path}", f"--file={ROOT / 'Makefile'}", "MANIFESTS=", "PACKAGES=")
    assert make(*there, "PIP=false", ".venv/.tools").returncode == 2
    assert installed.exists()
    assert not unfinished.exists()
    assert make(*there, "PIP=true", ".venv/.tools").returncode == 0
    assert installed.exists()
    assert (tmp_path / ".venv" / ".tools").exists()
