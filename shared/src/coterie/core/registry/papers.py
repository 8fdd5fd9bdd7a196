"""The papers that are installed, their configuration files, their parts when needed. Torch-free."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from coterie.core.errors import UserError, nearest
from coterie.core.registry.keys import MetricKey, Panel

GROUP = "coterie.papers"


@dataclass(frozen=True)
class DataSet:
    """A data set that is known by name.

    Attributes:
        name: what the user types; also the folder below the data root.
        about: one line.
        terms: what its owners allow.
        core: k of the k-core filter that the literature uses with it; 0 for samples.
        files: alternative names (or patterns) of the file that tells that the set is there, each
            also as ``.gz``; none if generated.
        reader: ``module:function``. Of interactions: it makes
            `coterie.core.data.interactions.interactions.Interactions` of the folder. Of samples: it
            makes the rows that ``coterie data NAME`` shows, dicts with ``part`` and ``samples``.
        url: the official archive.
        md5: its published digest where it never changes; otherwise the ``.md5`` file beside the
            archive is asked.
        by_hand: where there is no archive, how to come by the files.
        kind: ``interactions`` of users with items, for recommenders, or labelled ``samples``
            (images, text), which the papers that add them read; archives of these stay packed.
    """

    name: str
    about: str
    terms: str
    core: int
    files: tuple[str, ...] = ()
    reader: str = ""
    url: str = ""
    md5: str = ""
    by_hand: str = ""
    kind: Literal["interactions", "samples"] = "interactions"


@dataclass(frozen=True)
class Paper:
    """What core knows of a paper; what is heavy is named as ``module:attribute``.

    Attributes:
        name: of the paper's method; what the user types.
        package: last part of the Python package, another name the user may type.
        title: of the paper.
        reference: authors, venue, year, DOI.
        methods: values of the setting ``method``.
        settings: the settings dataclass.
        experiment: builds data, client and server of a run.
        client: the client class, whose steps are the protocol.
        clients: methods -> their client class, where it is another one.
        client_half: what makes the client half from the public card
            (`coterie.core.protocol.card.Card`) and the client's own folder; what it imports knows
            no server half. None: the client class itself.
        server_half: what makes the server half from the card, the clients' ids and the
            server's own folder.
        tables: function that reproduces a table or figure, called with a
            `coterie.core.settings.configuration.Configuration`, ``table``, ``figure`` and
            ``seeds``; gives a `coterie.core.tables.report.Report`.
        bench: function that measures speed against a reference loop, called with the settings;
            yields dicts with ``name, unit, ours, reference, ratio, max_abs_diff``. What begins with
            ``benchmarks.`` is in the repository, and needs a clone of it.
        export: function that gives what `coterie export` writes, called with a run's folder,
            a `coterie.core.run.exported.Asked` and the folder of what another process kept of the
            run, or None; gives a `coterie.core.run.exported.Exported`.
        formats: what it can write beside safetensors and onnx, by name.
        variant_keys: settings whose values name the tuned configurations
            ``configs/<paper>/<variant>.yaml``: each alone, and joined by ``-``, which wins.
        central: the method that trains a network on all data in one place; None where no network of
            the paper can be trained by itself, see `coterie.core.run.experiment`'s ``standalone``.
        local: the method that trains it on the data of one client.
        networks: names of networks that no setting chooses, which can be trained by themselves.
        unread: methods -> those of these settings that they do not read, which do not name a run.
        data_sets: what the paper adds to the data sets of core.
        keys: what its runs measure, beside what core does.
        panels: charts of these.
        looking: function that says more of a run, from files in its folder: given its path it
            gives `coterie.core.tables.report.Report`s, none where the folder has nothing more.
        label: the name as the paper writes it, for headings; empty where that is the same.
    """

    name: str
    package: str
    title: str
    reference: str
    methods: tuple[str, ...]
    settings: str
    experiment: str
    client: str | None = None
    clients: Mapping[str, str] = field(default_factory=dict)
    client_half: str | None = None
    server_half: str | None = None
    tables: str | None = None
    bench: str | None = None
    export: str = "coterie.core.export.of_run:of_run"
    formats: tuple[str, ...] = ()
    variant_keys: tuple[str, ...] = ("data.name",)
    central: str | None = None
    local: str | None = None
    networks: tuple[str, ...] = ()
    unread: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    data_sets: tuple[DataSet, ...] = ()
    keys: tuple[MetricKey, ...] = ()
    panels: tuple[Panel, ...] = ()
    looking: str | None = None
    label: str = ""

    @property
    def written(self) -> str:
        """The name for people, as F³CRec."""
        return self.label or self.name

    def named_by(self, method: str) -> tuple[str, ...]:
        """The settings, beside the data set, that tell runs of a method apart."""
        left_out = ("data.name", *self.unread.get(method, ()))
        return tuple(key for key in self.variant_keys if key not in left_out)

    def client_of(self, method: str | None) -> str | None:
        """The client class of a method; without one that of most."""
        return self.client if method is None else self.clients.get(method, self.client)

    @property
    def maker(self) -> str | None:
        """What makes the client half from a card."""
        return self.client_half or self.client


def papers() -> dict[str, Paper]:
    """Find the installed papers by name.

    Example:
        >>> all(name == paper.name for name, paper in papers().items())
        True
    """
    folders = tuple((folder, _changed(folder)) for folder in sys.path)
    found = (entry.load() for entry in _installed(folders))
    return {paper.name: paper for paper in sorted(found, key=lambda paper: paper.name)}


@cache
def _installed(_: tuple[tuple[str, int], ...]) -> EntryPoints:
    """Look through the packages of these folders, and again once one of them has changed.

    It takes 10 ms, and a command asks a dozen times.
    """
    return entry_points(group=GROUP)


def _changed(folder: str) -> int:
    """When something was last installed in a folder, in ns; 0 for what is none."""
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def find_paper(name: str) -> Paper:
    """Find a paper by the name of its method or of its package.

    Raises:
        UserError: no such paper is installed; the nearest name is given.
    """
    known = papers()
    if not isinstance(name, str):
        raise UserError(f"a paper is called by its name, not {name!r:.40}: {', '.join(known)}")
    for paper in known.values():
        if name in (paper.name, paper.package):
            return paper
    if not known:
        raise UserError("no paper is installed, say: pip install ./packages/continual")
    names = {*known, *(paper.package for paper in known.values())}
    raise UserError(f"paper '{name}' is not installed: {nearest(name, names)}")


def load(dotted: str) -> Any:
    """Import what is named as ``module:attribute``.

    Example:
        >>> load("coterie.core.registry.papers:GROUP")
        'coterie.papers'
    """
    module, _, attribute = dotted.partition(":")
    return getattr(import_module(module), attribute)


# Modules imported when they are needed, since they import torch or as much. Torch-free.


def heavy(name: str) -> ModuleType:
    """Import a module without looking for garbage meanwhile.

    The collector would go through the same hundreds of thousands of new objects again and again:
    a sixth of the time that torch and matplotlib take.

    Example:
        >>> heavy("json").loads("1"), gc.isenabled()
        (1, True)
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if collecting:
            gc.enable()


# Where the configuration files are that come with coterie; imports no parser. Torch-free.


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
