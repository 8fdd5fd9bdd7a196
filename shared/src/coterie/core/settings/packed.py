"""Where the configuration files are that come with coterie; imports no parser. Torch-free."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from coterie.core.errors import UserError, nearest
from coterie.core.registry.papers import Paper


def presets() -> list[str]:
    """List the presets, which shorten or lengthen a run of any paper."""
    return _names(_configs("core") / "presets")


def variants(paper: Paper) -> list[str]:
    """List the tuned configurations of a paper."""
    return _names(_configs(paper.package) / paper.name)


def preset_file(name: str) -> Path:
    """Find a preset.

    Raises:
        UserError: there is no such preset.
    """
    return _named(_configs("core") / "presets", name, f"preset '{name}'")


def variant_file(paper: Paper, name: str) -> Path:
    """Find a tuned configuration of a paper.

    Raises:
        UserError: there is no such variant.
    """
    folder = _configs(paper.package) / paper.name
    return _named(folder, name, f"variant '{name}' of {paper.name}")


def paper_file(paper: Paper) -> Path | None:
    """Find the paper's general configuration, if it has one."""
    found = _configs(paper.package) / f"{paper.name}.yaml"
    return found if found.is_file() else None


def sweep_file(paper: Paper) -> Path:
    """Find the paper's sweep.

    Raises:
        UserError: the paper has none.
    """
    found = _configs(paper.package) / "sweeps" / f"{paper.name}.yaml"
    if not found.is_file():
        raise UserError(f"{paper.name} has no sweep: write one and give it by --file SWEEP.yaml")
    return found


def _configs(package: str) -> Path:
    """Folder of the configurations that come with a package, which need not exist.

    Beside its modules in a wheel; in a checkout also the workspace's, which has the presets.
    """
    folder = Path(str(files(f"coterie.{package}")))
    if (folder / "configs").is_dir():
        return folder / "configs"
    above = (parent / "configs" for parent in folder.parents)
    return next((found for found in above if (found / "presets").is_dir()), folder / "configs")


def _named(folder: Path, name: str, what: str) -> Path:
    known = _names(folder)
    if name not in known:
        raise UserError(f"{what} is unknown: {nearest(name, known) if known else 'there are none'}")
    return folder / f"{name}.yaml"


def _names(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml"))
