"""What the tables share: methods, backbones, how each is run, and what it reads of the settings."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, get_args

from coterie.core.data.interactions.digest import data_digest
from coterie.core.data.sources.catalogue import load_all
from coterie.core.tables.study import BackboneStudy
from coterie.llm.data.catalogue import Catalogue
from coterie.llm.paper import PAPER
from coterie.llm.readings import resolve
from coterie.llm.settings.backbone import BackboneName, ExpertSettings
from coterie.llm.settings.run import FederatedDataSettings, MixingSettings, Settings
from coterie.llm.tables.runs import REFERENCES, train
from coterie.llm.title_rule import has_words

NAMES = {
    "popularity": "popularity",
    "titles": "titles + popularity",
    "titles-all": "titles + all counts",
    "mf": "MF",
    "lightgcn": "LightGCN",
    "fedmf": "FedMF",
    "lightfr": "LightFR",
    "fedpergnn": "FedPerGNN",
    "fedpergnn-clear": "FedPerGNN without noise",
    "central": "central",
    "fedavg": "+FedAvg",
    "fedprox": "+FedProx",
    "fedavg-tuned": "+FedAvg, tuned locally",
    "fedavg-head": "+FedAvg, local head",
    "fedamp": "+FedAMP",
    "local": "+local only",
    "pplr": "+PPLR",
    "pplr-attention": "+attention only",
    "pplr-heating": "+warm-up only",
}
# The rows of Table 1 without a language model, in its order.
RULES = ("popularity", "titles", "titles-all")
WITHOUT_BACKBONE = (*RULES, "mf", "lightgcn", "fedmf", "lightfr", "fedpergnn")
BACKBONES = ("tiny-item", "tiny-text", "recformer")
_ATTENTION = {"similarity", "similarity_on", "size_weighted"}
_HEATING = {"alpha", "beta", "tau", "exponent", "size_weighted"}
# What of the section mixing a method reads.
_READS: dict[str, set[str]] = {
    "pplr": _ATTENTION | _HEATING,
    "pplr-attention": _ATTENTION,
    "pplr-heating": _HEATING,
}
_SECTIONS = WITHOUT_BACKBONE[len(RULES) :]  # all that these methods read, beside the data
_OWN = {"fedavg-tuned": "tuning", "fedamp": "fedamp"}  # sections that one method alone reads
_COMMON = ("seed", "data", "engine", "privacy", "logger", "run")


def essential(settings: Settings) -> Settings:
    """Fill the reading's choices, and set what the method does not read to one value.

    Example:
        >>> essential(Settings(method="fedavg", mixing=MixingSettings(alpha=0.1))).mixing.alpha
        0.7
    """
    settings = replace(settings, data=_read_data(settings.data))
    if settings.method in _SECTIONS:
        return resolve(replace(plain(settings, settings.method), method=settings.method))
    filled = resolve(settings)
    reads = _READS.get(filled.method, set())
    kept: dict[str, Any] = {name: getattr(filled.mixing, name) for name in reads}
    of_others = [name for method, name in _OWN.items() if method != filled.method]
    unread: dict[str, Any] = {name: getattr(Settings(), name) for name in (*_SECTIONS, *of_others)}
    if filled.model.expert == "none":
        unread["expert"] = ExpertSettings()
    less = replace(filled, reading="recommended", mixing=MixingSettings(**kept), **unread)
    if filled.method != "fedprox":
        less = replace(less, train=replace(less.train, mu=0.0))
    return resolve(less)


def _read_data(data: FederatedDataSettings) -> FederatedDataSettings:
    """Set what the partition does not read to one value."""
    return data if data.partition == "shops" else replace(data, skew=FederatedDataSettings().skew)


def plain(settings: Settings, section: str) -> Settings:
    """Keep the data, the seed and one section, if there is such a section."""
    sections = (*_COMMON, section) if section in _SECTIONS else _COMMON
    kept: dict[str, Any] = {name: getattr(settings, name) for name in sections}
    return resolve(Settings(**kept | {"data": _read_data(settings.data)}))


class Study(BackboneStudy[Settings]):
    """The runs behind a table or figure."""

    paper, names = PAPER, NAMES
    backbone_names: ClassVar = {name: name for name in BACKBONES if name in get_args(BackboneName)}
    train, essential = train, essential
    references = REFERENCES

    def bare(self, name: str, settings: Settings) -> Settings:
        """Keep what references read: data, seed, and a section of their own if there is one."""
        return plain(settings, name)

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure2", with the clients that the user asks for."""
        data = self.settings.data
        skew = f"-{data.skew:g}" if data.partition == "shops" else ""
        clients = "" if data.partition == "k-means" else f"-{data.partition}{skew}"
        return f"{super().file(which)}{clients}"

    def stem(self, settings: Settings) -> str:
        """Begin the names of files of a run: method, and backbone if it has one."""
        backbone = "" if settings.method in WITHOUT_BACKBONE else f"{settings.model.name}-"
        return f"{backbone}{settings.method}"

    @property
    def without_backbone(self) -> tuple[str, ...]:
        """Name the rows without a language model; the titles' only where items have words."""
        absent = () if has_words(Catalogue.of(load_all(self.settings.data))) else RULES[1:]
        return tuple(name for name in WITHOUT_BACKBONE if name not in absent)

    @cached_property
    def digest(self) -> str:
        """Hash of the data set."""
        return data_digest(load_all(self.settings.data))
