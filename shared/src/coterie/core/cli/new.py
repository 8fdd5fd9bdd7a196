"""``coterie new``: a paper of one's own that trains, is tested and packs at once. Torch-free."""

from __future__ import annotations

import keyword
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from string import Template

from coterie.core.cli.command import Arguments, say
from coterie.core.cli.main import COMMANDS
from coterie.core.errors import UserError
from coterie.core.files import write_text, writing
from coterie.core.registry.papers import papers

NDCG = "0.322"
"""NDCG@20 that the paper reaches on the sample, for its card."""
_RESERVED = {"core", "configs", "presets", "sweeps", "shared", "tests", "benchmarks"}
_MODULES = ("__init__", "paper", "settings", "messages", "client", "algorithm", "experiment")
_MYPY = re.compile(r'^mypy_path = "[^"]*', re.MULTILINE)


def run_new(argv: Sequence[str]) -> None:
    """Run the command."""
    parser = Arguments("new", "Write a paper: FedAvg on the built-in sample, to start from.")
    parser.add_argument("name", help="of the paper, a Python identifier in lower case")
    parser.add_argument("--to", type=Path, help="folder to make; default: in this clone of coterie")
    given = parser.parse_args(argv)
    check_name(given.name)
    if given.to is not None:
        folder = given.to.expanduser()
        write_outside(given.name, folder)
        install = f"python -m pip install -e {folder}"
    else:
        folder = write_in_clone(given.name, clone_of(Path.cwd()))
        install = "make setup"
    say(f"written to {folder}; next: {install}, then coterie train {given.name}")


def check_name(name: str) -> None:
    """Check that a paper may be called so.

    Raises:
        UserError: it is no name of a package, reserved, or taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,23}", name) or keyword.iskeyword(name):
        raise UserError(
            f"'{name}' cannot be the name of a Python package: use at most 24 lower-case letters, "
            "digits and underscores, a letter first, as in mypaper"
        )
    if name in _RESERVED or name in COMMANDS:
        raise UserError(f"'{name}' has a meaning in coterie already: choose another name")
    for paper in papers().values():
        if name in (paper.name, paper.package):
            raise UserError(f"there is a paper '{name}' already ({paper.title}): choose another")


def clone_of(folder: Path) -> Path:
    """Find the clone of coterie that a folder is in.

    Raises:
        UserError: it is in none.
    """
    for parent in (folder, *folder.parents):
        if (parent / "shared/src/coterie/core").is_dir() and (parent / "packages").is_dir():
            return parent
    raise UserError("this folder is in no clone of coterie: go into one, or say --to FOLDER")


def write_in_clone(name: str, clone: Path) -> Path:
    """Write a paper beside the others, and tell mypy where it is; return its folder.

    Raises:
        UserError: a part of it is there already, or cannot be written.
    """
    package = clone / "packages" / name
    workspace = clone / "pyproject.toml"
    with writing(clone, "then say it again"):
        described = workspace.read_text("utf-8")
        if not _MYPY.search(described):
            raise UserError(
                f"{workspace} has no line mypy_path: put it back, the paper is added to it"
            )
        words = _words(name, license_='license = "Apache-2.0"\n')
        tests = {f"test_{name}.py": _filled("test.py", words)}
        about = {"LICENSE": (clone / "LICENSE").read_text("utf-8")}
        config = clone / "configs" / f"{name}.yaml"
        _refuse_taken(package, config, clone / "tests" / name)
        _write(clone / "tests" / name, tests)
        _write(package, {**_package(name, words), **about})
        link = package / "src" / "coterie" / name / "configs"
        link.symlink_to(Path(*[".."] * 5, "configs"), target_is_directory=True)
        write_text(config, _filled("config.yaml", words))
    write_text(workspace, _MYPY.sub(rf"\g<0>:packages/{name}/src", described))
    return package


def write_outside(name: str, folder: Path) -> None:
    """Write a paper as a project of its own.

    Raises:
        UserError: the folder is there already, or cannot be written.
    """
    words = _words(name, license_="")
    inside = {
        **_package(name, words),
        f"src/coterie/{name}/configs/{name}.yaml": _filled("config.yaml", words),
        f"tests/test_{name}.py": _filled("test.py", words),
    }
    _refuse_taken(folder)
    with writing(folder, "then say it again"):
        _write(folder, inside)


def _refuse_taken(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise UserError(f"{path} is there already: choose another name")


def _write(folder: Path, inside: Mapping[str, str]) -> None:
    """Write the files of a new folder; it is gone again where that fails."""
    try:
        for file, text in inside.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / file, text)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _package(name: str, words: Mapping[str, str]) -> dict[str, str]:
    """Files of the package by their paths in its folder."""
    home = f"src/coterie/{name}"
    modules = {f"{home}/{m}.py": _filled(f"package/{m}.py", words) for m in _MODULES}
    about = {file: _filled(file, words) for file in ("pyproject.toml", "README.md")}
    return {**about, **modules, f"{home}/py.typed": ""}


def _words(name: str, license_: str) -> dict[str, str]:
    major, minor = version("coterie-core").split(".")[:2]
    return {
        "name": name,
        "Name": "".join(part.capitalize() for part in name.split("_")),
        "dashed": name.replace("_", "-"),
        "core": f">={major}.{minor},<{major}.{int(minor) + 1}",
        "license": license_,
        "ndcg": NDCG,
    }


def _filled(file: str, words: Mapping[str, str]) -> str:
    template = files("coterie.core.cli") / "paper_template" / f"{file}.in"
    return _sorted_imports(Template(template.read_text("utf-8")).substitute(words))


def _sorted_imports(text: str) -> str:
    """Sort neighbouring imports of coterie, whose order depends on the paper's name."""
    groups = groupby(text.splitlines(keepends=True), lambda line: line.startswith("from coterie."))
    return "".join("".join(sorted(g, key=str.split) if ours else g) for ours, g in groups)
