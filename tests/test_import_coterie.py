"""`import coterie` is light, and leads to papers wherever they are."""

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import coterie

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "shared" / "src"
HEAVY = {"torch", "lightning", "pandas", "numpy", "pyarrow", "yaml", "jsonargparse", "rich"}


def python(code: str, *path: Path, flags: tuple[str, ...] = (), cwd: Path | None = None) -> str:
    """Run code in a process whose path begins with these folders; return what it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PYTHONPATH"] = os.pathsep.join(map(str, path))
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], env=env, cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def portion(folder: Path, name: str = "mine") -> Path:
    """A folder with `coterie/<name>`, as a paper's source or wheel has it."""
    package = folder / "coterie" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"HERE = {name!r}\n")
    return folder


# What it costs and what it has


def test_it_takes_next_to_no_time_and_imports_nothing_heavy():
    told = [
        subprocess.run(
            [sys.executable, "-X", "importtime", "-c", "import coterie"],
            env=os.environ | {"PYTHONPATH": str(CORE)},
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        for _ in range(3)
    ]
    lines = [[line for line in text.splitlines() if line.endswith("| coterie")] for text in told]
    assert min(int(line.split("|")[1]) for (line,) in lines) < 100_000  # microseconds
    loaded = python("import coterie, sys; print(*sys.modules)", CORE).split()
    assert {name.split(".")[0] for name in loaded} & HEAVY == set()


@pytest.mark.parametrize("name", coterie.__all__)
def test_every_public_name_is_there(name):
    assert getattr(coterie, name) is getattr(coterie, name)
    assert name in dir(coterie)


def test_what_is_not_there_is_said():
    with pytest.raises(AttributeError, match=r"no attribute 'trian'; it has Run, UserError"):
        coterie.trian  # noqa: B018
    with pytest.raises(ImportError):
        importlib.import_module("coterie.nothing")
    assert coterie.__version__.count(".") == 2


def test_looking_at_a_run_imports_no_torch():
    code = "import coterie, sys; coterie.Run, coterie.load, coterie.papers(); print(*sys.modules)"
    assert "torch" not in python(code, CORE).split()


# Where papers are


def test_a_paper_in_another_entry_of_the_path_is_found(tmp_path):
    first, last = portion(tmp_path / "a", "one"), portion(tmp_path / "b", "two")
    code = (
        "import coterie, coterie.one, coterie.two; from coterie import core; print(core.__file__)"
    )
    assert python(code, first, CORE, last) == str(CORE / "coterie/core/__init__.py")


def test_a_folder_without_the_core_before_it_hides_nothing(tmp_path):
    """As a clone called `coterie` does in the folder where Python runs."""
    portion(tmp_path)
    code = "import coterie, coterie.mine; print(coterie.UserError.__module__, coterie.mine.HERE)"
    assert python(code, tmp_path, CORE) == "coterie.core.errors mine"
    assert python(code, CORE, cwd=tmp_path) == "coterie.core.errors mine"


def test_what_stands_beside_the_init_comes_before_another_core(tmp_path):
    other = portion(tmp_path, "core")
    code = "import coterie.core.errors as e; print(e.__file__)"
    assert python(code, other, CORE) == str(CORE / "coterie/core/errors.py")


def test_a_path_that_grows_and_shrinks_after_the_import_is_followed(tmp_path):
    portion(tmp_path)
    code = (
        "import sys, coterie\n"
        "import importlib.util as util\n"
        "print(util.find_spec('coterie.mine'))\n"
        f"sys.path.append({str(tmp_path)!r})\n"
        "print(util.find_spec('coterie.mine').origin)\n"
        "sys.path.pop()\n"
        "print(util.find_spec('coterie.mine'))"
    )
    assert python(code, CORE).splitlines() == [
        "None",
        str(tmp_path / "coterie/mine/__init__.py"),
        "None",
    ]


def test_the_working_directory_is_the_one_of_now(tmp_path):
    portion(tmp_path / "there")
    (tmp_path / "here").mkdir()
    code = (
        "import coterie, os, importlib.util as util\n"
        "print(util.find_spec('coterie.mine'))\n"
        "os.chdir('../there')\n"
        "print(util.find_spec('coterie.mine') is not None)\n"
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        "import coterie.core.errors\n"
        "print(len(coterie.__path__) > 0)"
    )
    assert python(code, CORE, cwd=tmp_path / "here").splitlines() == ["None", "True", "True"]


def test_a_paper_in_an_archive_is_found(tmp_path):
    portion(tmp_path / "source")
    archive = tmp_path / "papers.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.mkdir("coterie")
        packed.write(tmp_path / "source/coterie/mine/__init__.py", "coterie/mine/__init__.py")
    assert python("import coterie, coterie.mine as m; print(m.HERE)", archive, CORE) == "mine"


def test_an_editable_folder_of_a_pth_file_is_found(tmp_path):
    portion(tmp_path / "source")
    site = tmp_path / "site"
    site.mkdir()
    (site / "mine.pth").write_text(f"{tmp_path / 'source'}\n")
    code = f"import coterie, site; site.addsitedir({str(site)!r}); import coterie.mine"
    python(code, CORE)
    python(f"import site; site.addsitedir({str(site)!r}); import coterie, coterie.mine", CORE)


@pytest.mark.parametrize("before", [True, False])
def test_an_editable_install_by_a_finder_of_setuptools_is_found(tmp_path, monkeypatch, before):
    """Whose folder stands on no path: a hook and a finder say where the parts are."""
    backend = pytest.importorskip("setuptools.build_meta")
    project, site = tmp_path / "project", tmp_path / "site"
    (project / "code").mkdir(parents=True)
    (project / "code" / "__init__.py").write_text("HERE = 'mine'\n")
    (project / "code" / "below.py").write_text("")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\n'
        '[tool.setuptools]\npackages = ["coterie.mine"]\n'
        '[tool.setuptools.package-dir]\n"coterie.mine" = "code"\n'
    )
    monkeypatch.chdir(project)
    wheel = backend.build_editable(str(tmp_path))
    zipfile.ZipFile(tmp_path / wheel).extractall(site)
    assert list(site.glob("__editable__*finder.py"))
    add = f"import site; site.addsitedir({str(site)!r})"
    lines = [add, "import coterie"] if before else ["import coterie", add]
    code = "\n".join([*lines, "import coterie.mine.below", "print(coterie.mine.HERE)"])
    assert python(code, CORE) == "mine"


def test_an_editable_install_of_hatchling_is_found(tmp_path, monkeypatch):
    from hatchling import build

    project, site = tmp_path / "project", tmp_path / "site"
    portion(project / "src")
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "mine"\nversion = "1"\n'
        '[tool.hatch.build.targets.wheel]\npackages = ["src/coterie"]\n'
    )
    monkeypatch.chdir(project)
    zipfile.ZipFile(tmp_path / build.build_editable(str(tmp_path))).extractall(site)
    add = f"import coterie, site; site.addsitedir({str(site)!r})"
    assert python(f"{add}; import coterie.mine; print(coterie.mine.HERE)", CORE) == "mine"


def test_without_the_folders_of_a_site_it_is_there(tmp_path):
    code = "import coterie; print(coterie.UserError.__name__, len(coterie.__path__))"
    assert python(code, CORE, flags=("-S",)) == "UserError 1"


def test_tools_see_a_path_as_of_any_package(tmp_path):
    portion(tmp_path)
    code = (
        "import coterie, pkgutil, sys\n"
        "coterie.__path__.append('/extra')\n"
        "path = coterie.__path__\n"
        "print(sorted(m.name for m in pkgutil.iter_modules(path)))\n"
        "print(path[0] == list(path)[0], '/extra' in path, len(path), path[:1] == [path[0]])"
    )
    assert python(code, CORE, tmp_path, flags=("-S",)).splitlines() == [
        "['core', 'mine']",
        "True True 3 True",
    ]
