"""What the tables share: which methods and backbones there are, and how each is run."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, get_args

from coterie.core.data.sources.catalogue import load_all
from coterie.core.tables.fingerprint import data_digest
from coterie.core.tables.study import BackboneStudy
from coterie.llm.paper import PAPER
from coterie.llm.settings.backbone import BackboneName
from coterie.llm.settings.run import Settings
from coterie.llm.tables.essence import essential, plain
from coterie.llm.tables.references import REFERENCES
from coterie.llm.tables.runs import train

NAMES = {
    "popularity": "popularity",
    "mf": "MF",
    "lightgcn": "LightGCN",
    "fedmf": "FedMF",
    "lightfr": "LightFR",
    "fedpergnn": "FedPerGNN",
    "central": "central",
    "fedavg": "+FedAvg",
    "fedprox": "+FedProx",
    "local": "+local only",
    "pplr": "+PPLR",
    "pplr-attention": "+attention only",
    "pplr-heating": "+warm-up only",
}
# The rows of Table 1 without a language model, in its order.
WITHOUT_BACKBONE = ("popularity", "mf", "lightgcn", "fedmf", "lightfr", "fedpergnn")
BACKBONES = ("tiny-item", "tiny-text", "recformer")


class Study(BackboneStudy[Settings]):
    """The runs behind a table or figure."""

    paper, names = PAPER, NAMES
    backbone_names: ClassVar = {name: name for name in BACKBONES if name in get_args(BackboneName)}
    train, essential = train, essential
    references = REFERENCES

    def bare(self, name: str, settings: Settings) -> Settings:
        """Keep what references read: data, seed, and a section of their own if there is one."""
        return plain(settings, name)

    def stem(self, settings: Settings) -> str:
        """Begin the names of files of a run: method, and backbone if it has one."""
        backbone = "" if settings.method in WITHOUT_BACKBONE else f"{settings.model.name}-"
        return f"{backbone}{settings.method}"

    @cached_property
    def digest(self) -> str:
        """Hash of the data set."""
        return data_digest(load_all(self.settings.data))
