"""What the wheels carry, whichever way they are built, and that the pins fit the ranges."""

import contextlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hatchling import build
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = [
    ROOT / "shared",
    *sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml")),
]
DOOR = {"coterie/__init__.py", "coterie/py.typed"}
each_project = pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)


def manifest(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def module(project: Path) -> str:
    """`core` or `continual`: the one package under the namespace."""
    (package,) = (project / "src" / "coterie").glob("*/__init__.py")
    return package.parent.name


def configs(project: Path) -> dict[str, bytes]:
    """Config files that belong to a project: the presets to core, a paper's own to its package."""
    papers = manifest(project)["project"].get("entry-points", {}).get("coterie.papers", {})
    patterns = [p for name in papers for p in (f"{name}.yaml", f"{name}/*.yaml", f"*/{name}.yaml")]
    found = {
        path.relative_to(ROOT / "configs").as_posix(): path.read_bytes()
        for pattern in patterns or ["presets/*.yaml"]
        for path in (ROOT / "configs").glob(pattern)
    }
    assert found, f"no config files for {project.name}"
    return found


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build_wheel(source: Path, folder: Path) -> Path:
    """Build as pip does, in this process: pip takes twice as long to start."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(source):
        return folder / build.build_wheel(str(folder))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """One wheel for each project, built from the checkout."""
    return {
        project: build_wheel(project, tmp_path_factory.mktemp(project.name)) for project in PROJECTS
    }


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(packed: dict[str, bytes]) -> Message:
    (name,) = (name for name in packed if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(packed[name].decode())


@each_project
def test_wheel_holds_one_package_of_the_namespace(project: Path, wheels: dict[Path, Path]) -> None:
    packed = contents(wheels[project])
    prefix = f"coterie/{module(project)}/"
    strangers = {n for n in packed if not n.startswith(prefix) and ".dist-info/" not in n}
    assert strangers == (DOOR if project.name == "shared" else set())
    source = project / "src"
    written = {p.relative_to(source).as_posix() for p in source.rglob("*.py")}
    assert {name for name in packed if name.endswith(".py")} == written
    assert prefix + "py.typed" in packed


@each_project
def test_wheel_holds_no_benchmark(project: Path, wheels: dict[Path, Path]) -> None:
    packed = contents(wheels[project])
    command = "coterie/core/cli/papers.py"  # which finds them in a clone
    folders = {part for name in packed if name != command for part in Path(name).parts}
    assert [part for part in folders if re.match("bench", part)] == []
    measured = {path.read_bytes() for path in (ROOT / "benchmarks").rglob("*.py")}
    assert len(measured) > 30
    assert not measured & set(packed.values())


def test_installed_wheels_say_where_benchmarks_are(
    wheels: dict[Path, Path], tmp_path: Path
) -> None:
    """In one line, whatever is called `benchmarks` where it is asked for."""
    site = tmp_path / "site-packages"
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    (site / "benchmarks").mkdir()
    (site / "benchmarks" / "__init__.py").touch()  # as some packages leave it
    code = "import sys; from coterie.core.cli.main import main; sys.exit(main())"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for paper in ("f3crec", "page"):
        done = subprocess.run(
            [sys.executable, "-c", code, "bench", paper],
            cwd=tmp_path,
            env=env | {"PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            "coterie: error: benchmarks are in coterie's repository, not in what is installed: "
            f"git clone it, and in the clone say make bench PAPER={paper}\n"
        )


def test_the_core_carries_what_new_papers_are_made_from(wheels: dict[Path, Path]) -> None:
    templates = (ROOT / "shared/src").rglob("paper_template/**/*.in")
    wanted = {path.relative_to(ROOT / "shared/src").as_posix() for path in templates}
    assert len(wanted) == 11
    assert wanted <= contents(wheels[ROOT / "shared"]).keys()


@each_project
def test_wheel_metadata_names_no_path_and_the_licence(
    project: Path, wheels: dict[Path, Path]
) -> None:
    packed = contents(wheels[project])
    fields = metadata(packed)
    requirements = [Requirement(line) for line in fields.get_all("Requires-Dist", [])]
    assert [str(r) for r in requirements if r.url is not None] == []
    assert "file://" not in fields.as_string()
    assert fields["License-Expression"] == "Apache-2.0"
    licences = [text for name, text in packed.items() if name.endswith("/licenses/LICENSE")]
    assert licences == [(ROOT / "LICENSE").read_bytes()]


@each_project
def test_wheel_holds_its_configs(project: Path, wheels: dict[Path, Path]) -> None:
    prefix = f"coterie/{module(project)}/configs/"
    packed = contents(wheels[project])
    inside = {n.removeprefix(prefix): text for n, text in packed.items() if n.startswith(prefix)}
    assert inside == configs(project)


@each_project
def test_wheel_by_way_of_the_sdist_is_the_same(
    project: Path, wheels: dict[Path, Path], tmp_path: Path
) -> None:
    with contextlib.chdir(project):
        sdist = tmp_path / build.build_sdist(str(tmp_path))
    with tarfile.open(sdist) as archive:
        assert [member.name for member in archive if not member.isfile()] == []
        archive.extractall(tmp_path, filter="data")
    again = build_wheel(tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "wheel")
    assert contents(again) == contents(wheels[project])


def test_pip_builds_the_same_wheel(wheels: dict[Path, Path], tmp_path: Path) -> None:
    project = PROJECTS[-1]
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run(sys.executable, "-m", "pip", "wheel", *flags, "--wheel-dir", tmp_path, project)
    (wheel,) = tmp_path.glob("*.whl")
    assert contents(wheel) == contents(wheels[project])


@each_project
def test_checkout_reads_the_top_level_configs(project: Path) -> None:
    beside = files(f"coterie.{module(project)}").joinpath("configs")
    for name, text in configs(project).items():
        assert beside.joinpath(name).read_bytes() == text


def requirements(group: list[str]) -> list[Requirement]:
    return [Requirement(line) for line in group]


def test_pins_are_plain_and_within_every_range() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)] == []
    pins = dict(line.split("==") for line in lines)
    ranges = requirements(manifest(ROOT)["dependency-groups"]["dev"])
    for project in PROJECTS:
        described = manifest(project)
        ranges += requirements(described["build-system"]["requires"])
        ranges += requirements(described["project"]["dependencies"])
    for wanted in ranges:
        name = canonicalize_name(wanted.name)
        if not name.startswith("coterie-"):
            assert wanted.specifier.contains(pins[name]), f"{wanted} leaves out {pins[name]}"
            assert "==" not in str(wanted.specifier)


def test_papers_admit_the_core_beside_them() -> None:
    core = manifest(ROOT / "shared")["project"]["version"]
    for project in PROJECTS[1:]:
        named = requirements(manifest(project)["project"]["dependencies"])
        (wanted,) = (r for r in named if r.name == "coterie-core")
        assert wanted.specifier.contains(core)


def test_the_core_alone_has_an_init_of_the_package_that_all_share() -> None:
    found = [p.name for p in PROJECTS if (p / "src" / "coterie" / "__init__.py").exists()]
    assert found == ["shared"]
