"""The papers that are installed, found by their entry points. Torch-free."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
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
    """

    name: str
    package: str
    title: str
    reference: str
    methods: tuple[str, ...]
    settings: str
    experiment: str
    client: str | None = None
    client_half: str | None = None
    server_half: str | None = None
    tables: str | None = None
    bench: str | None = None
    variant_keys: tuple[str, ...] = ("data.name",)
    central: str | None = None
    local: str | None = None
    networks: tuple[str, ...] = ()
    unread: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    data_sets: tuple[DataSet, ...] = ()
    keys: tuple[MetricKey, ...] = ()
    panels: tuple[Panel, ...] = ()

    def named_by(self, method: str) -> tuple[str, ...]:
        """The settings, beside the data set, that tell runs of a method apart."""
        left_out = ("data.name", *self.unread.get(method, ()))
        return tuple(key for key in self.variant_keys if key not in left_out)

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
