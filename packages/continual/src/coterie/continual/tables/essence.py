"""The settings that a run's numbers depend on."""

from __future__ import annotations

from dataclasses import replace

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
