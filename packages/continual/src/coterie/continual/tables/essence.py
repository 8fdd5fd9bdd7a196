"""What a run's numbers depend on: the settings that matter, the code, the data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import coterie.continual.settings
import coterie.core.settings
from coterie.continual.readings import resolve
from coterie.continual.settings import (
    KDSettings,
    RegSettings,
    ReplaySettings,
    RLP2Settings,
    Settings,
    SPPSettings,
    TemporalMeanSettings,
)
from coterie.core.data.interactions import Interactions
from coterie.core.schema import values_of

# The sections of the settings that a method reads.
_READS: dict[str, set[str]] = {
    "ft": set(),
    "reg": {"reg"},
    "kd": {"replay", "kd"},
    "rlp2": {"rlp2"},
    "spp": {"spp"},
    "f3crec": {"replay", "temporal_mean"},
    "f3crec-wo-cc": {"temporal_mean"},
    "f3crec-wo-arm": {"replay", "temporal_mean"},
    "f3crec-wo-sc": {"replay"},
    "f3crec-wo-itm": {"replay", "temporal_mean"},
}
# Settings of speed, files and screens.
_OF_NO_EFFECT = ("run.", "logger.", "engine.chunk", "engine.threads", "data.root")
# Code of screens, files and tables; all else may change a number.
_APART = {"cli", "callbacks", "tables", "engines", "dashboard.py", "report.py", "bench.py"}


def essential(settings: Settings) -> Settings:
    """Set what the method does not read to its default, and fill the reading's choices.

    Example:
        >>> settings = Settings(method="ft", temporal_mean=TemporalMeanSettings(beta=0.5))
        >>> essential(settings).temporal_mean.beta
        0.9
    """
    reads = _READS[settings.method]
    unread = {
        # top_n is checked against the number of items even where nothing is replayed.
        "replay": ReplaySettings(top_n=1),
        "temporal_mean": TemporalMeanSettings(),
        "kd": KDSettings(),
        "reg": RegSettings(),
        "rlp2": RLP2Settings(),
        "spp": SPPSettings(),
    }
    plain = {name: part for name, part in unread.items() if name not in reads}
    return resolve(replace(resolve(settings), **plain))  # type: ignore[arg-type]


def base_settings(settings: Settings) -> Settings:
    """Give the settings of the base block alone, in which every method is fine-tuning."""
    filled = resolve(settings)
    data = replace(filled.data, block_order="chronological", ties="random")
    plain = replace(filled, method="ft", reading="recommended", data=data)
    return essential(replace(plain, carry="best", restart_private=False))


def fingerprint(settings: Settings, data: str, *more: str) -> str:
    """Hash the settings with effect, the code and the data into 16 hexadecimal digits.

    Args:
        settings: as `essential` gives them.
        data: from `data_digest`.
        more: what else the result depends on.
    """
    values = {
        key: value
        for key, value in values_of(settings).items()
        if not key.startswith(_OF_NO_EFFECT)
    }
    text = json.dumps([values, code_version(), data, *more], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def data_digest(interactions: Interactions) -> str:
    """Hash who touched what and when."""
    found = hashlib.sha256()
    for column in (interactions.user, interactions.item, interactions.time):
        found.update(column.contiguous().numpy().tobytes())
    return found.hexdigest()


@cache
def code_version() -> str:
    """Hash the source of everything that may change a number."""
    found = hashlib.sha256()
    for file in _sources():
        found.update(file.read_bytes())
    return found.hexdigest()


def _sources() -> Iterator[Path]:
    for module in (coterie.core.settings, coterie.continual.settings):
        folder = Path(module.__file__ or "").parent
        for file in sorted(folder.rglob("*.py")):
            if not _APART & set(file.relative_to(folder).parts):
                yield file
