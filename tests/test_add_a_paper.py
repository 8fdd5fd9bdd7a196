"""`coterie new`, and docs/add-a-paper.md followed to the letter."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from coterie.core.cli.main import main
from coterie.core.cli.new import NDCG

ROOT = Path(__file__).resolve().parents[1]
DOC = (ROOT / "docs" / "add-a-paper.md").read_text()
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
SOURCES = ("shared", *(f"packages/{name}" for name in PACKAGES))


def commands(number: int) -> list[str]:
    """Lines of a fenced block of the document, from 0."""
    return re.findall(r"```bash\n(.*?)```", DOC, re.DOTALL)[number].splitlines()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the workspace with a .venv as `make setup` leaves it, but from what is here.

    It borrows the packages of this interpreter, where a fresh one would download them.
    """
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\n")
    for name in filter(None, listed):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    environment = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    theirs = [path for path in sys.path if path.endswith("site-packages")]
    sources = [str(folder / source / "src") for source in SOURCES]
    (site / "borrowed.pth").write_text("\n".join([*sources, *theirs, ""]))
    scripts = Path(sysconfig.get_path("scripts"))
    shutil.copy2(scripts / "ruff", environment / "bin" / "ruff")
    program = environment / "bin" / "coterie"
    body = "import sys\nfrom coterie.core.cli.main import main\nsys.exit(main())\n"
    program.write_text(f"#!{environment / 'bin' / 'python'}\n{body}")
    program.chmod(0o755)
    for stamp in (".installed", ".tools"):
        (environment / stamp).touch()
    return folder


def follow(lines: list[str], folder: Path) -> str:
    """Run commands as they stand, in a shell, with pip kept from the network."""
    path = f"{folder / '.venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MAKE", "COTERIE_"))},
        "PATH": path,
        "OMP_NUM_THREADS": "1",
        "PYTHON": sys.executable,
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # which means that there is none
    }
    printed = []
    for line in lines:
        done = subprocess.run(
            line, shell=True, cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        printed.append(done.stdout)
    return "\n".join(printed)


def measured(folder: Path, name: str) -> float:
    [summary] = folder.glob(f"runs/{name}/*/summary.json")
    return json.loads(summary.read_text())["metrics"]["test/ndcg@20"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("make") or not shutil.which("git"), reason="needs make, git")
def test_the_document_followed_to_the_letter(clone: Path) -> None:
    assert [line.split()[0] for line in commands(0)] == ["make", ".venv/bin/coterie", "make"]
    follow(commands(0), clone)
    assert measured(clone, "mypaper") == pytest.approx(float(NDCG), abs=0.0005)
    assert NDCG in (clone / "packages/mypaper/README.md").read_text()
    printed = follow(commands(1), clone)
    assert "w_k - w" in printed
    assert "1 passed" in printed
    [wheel] = (clone / "dist").glob("coterie_mypaper-*.whl")
    packed = zipfile.ZipFile(wheel).namelist()
    assert "coterie/mypaper/configs/mypaper.yaml" in packed
    assert not [name for name in packed if "f3crec" in name]
    printed = follow(commands(2), clone)
    assert "1 passed" in printed
    assert measured(clone, "otherpaper") == measured(clone, "mypaper")
    # What holds for the papers of the workspace holds for the new one.
    own = ["tests/test_configs.py", "tests/test_structure.py", "tests/test_packaging.py"]
    follow([f".venv/bin/python -m pytest -q {' '.join(own)} -k mypaper"], clone)


# The command


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `coterie new` looks for in a clone."""
    for name in ("packages", "configs", "tests", "docs"):
        (tmp_path / name).mkdir()
    (tmp_path / "shared").symlink_to(ROOT / "shared")
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path / "docs")
    return tmp_path


def files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}


def test_a_paper_is_at_most_250_lines(workspace: Path) -> None:
    before = files(workspace)
    assert main(["new", "mypaper"]) == 0
    written = [workspace / name for name in files(workspace) - before if "LICENSE" not in name]
    lines = [line for path in written for line in path.read_text().splitlines()]
    assert len(written) == 12
    assert len(lines) <= 250
    assert [line for line in lines if "$" in line or len(line) > 100] == []


def test_mypy_is_told_and_the_rest_of_the_workspace_stays(workspace: Path) -> None:
    before = (workspace / "pyproject.toml").read_text()
    assert main(["new", "my_paper"]) == 0
    after = (workspace / "pyproject.toml").read_text()
    assert tomllib.loads(after)["tool"]["mypy"]["mypy_path"].endswith(":packages/my_paper/src")
    assert after.replace(":packages/my_paper/src", "") == before
    home = workspace / "packages/my_paper/src/coterie/my_paper"
    assert (home / "configs").readlink() == Path("../../../../../configs")
    assert (home / "configs" / "my_paper.yaml").is_file()
    assert "class MyPaperServer(" in (home / "algorithm.py").read_text()


@pytest.mark.parametrize("name", ["a", "mypaper", "zeta", "a_name_of_twenty_four_abc"[:24]])
def test_what_is_written_is_clean_whatever_its_name(workspace: Path, name: str) -> None:
    assert main(["new", name]) == 0
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    for how in (["check"], ["format", "--check"]):
        command = [ruff, *how, "--no-cache", f"packages/{name}", f"tests/{name}"]
        done = subprocess.run(command, cwd=workspace, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("my-paper", "cannot be the name of a Python package"),
        ("MyPaper", "cannot be the name of a Python package"),
        ("1st", "cannot be the name of a Python package"),
        ("class", "cannot be the name of a Python package"),
        ("../up", "cannot be the name of a Python package"),
        ("", "cannot be the name of a Python package"),
        ("a" * 25, "at most 24"),
        ("core", "has a meaning in coterie already"),
        ("presets", "has a meaning in coterie already"),
        ("train", "has a meaning in coterie already"),
        ("f3crec", "there is a paper 'f3crec' already"),
        ("llm", "there is a paper 'llm' already"),
    ],
)
def test_a_wrong_name_is_one_line(
    workspace: Path, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    before = files(workspace)
    assert main(["new", name]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert why in line
    assert files(workspace) == before


@pytest.mark.parametrize("there", ["packages/mine", "configs/mine.yaml", "tests/mine"])
def test_nothing_is_written_over(
    workspace: Path, capsys: pytest.CaptureFixture[str], there: str
) -> None:
    (workspace / there).mkdir()
    before = files(workspace)
    assert main(["new", "mine"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{there} is there already: choose another name" in line
    assert files(workspace) == before


def test_a_folder_that_cannot_be_written_is_not_left_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace, calls = os.replace, []

    def full(old: str, new: Path) -> None:
        calls.append(new)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(old, new)

    monkeypatch.setattr(os, "replace", full)
    assert main(["new", "mine", "--to", str(tmp_path / "here")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "no space left" in line
    assert list(tmp_path.iterdir()) == []


def test_outside_of_a_clone_a_folder_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "mine"]) == 2
    assert "in no clone of coterie: go into one, or say --to FOLDER" in capsys.readouterr().err
    assert main(["new", "mine", "--to", "here"]) == 0
    assert "src/coterie/mine/configs/mine.yaml" in files(tmp_path / "here")
    assert main(["new", "mine", "--to", "here"]) == 2
    assert "here is there already" in capsys.readouterr().err
