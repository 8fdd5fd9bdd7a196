"""The settings that a run's numbers depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.continual.readings import resolve
from coterie.continual.settings import ReplaySettings, Settings

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

_SECTIONS = set().union(*_READS.values())
# top_n is checked against the number of items even where nothing is replayed.
_UNREAD_REPLAY = ReplaySettings(top_n=1)


def essential(settings: Settings) -> Settings:
    """Set what the method does not read to its default, and fill the reading's choices.

    Example:
        >>> essential(Settings(method="ft", replay=ReplaySettings(epsilon=0.5))).replay.epsilon
        0.006
    """
    defaults = replace(Settings(), replay=_UNREAD_REPLAY)
    unread: dict[str, Any] = {
        name: getattr(defaults, name) for name in _SECTIONS - _READS[settings.method]
    }
    return resolve(replace(resolve(settings), **unread))


def base_settings(settings: Settings) -> Settings:
    """Give the settings of the base block alone, in which every method is fine-tuning."""
    filled = resolve(settings)
    data = replace(filled.data, block_order="chronological", ties="random")
    plain = replace(filled, method="ft", reading="recommended", data=data)
    return essential(replace(plain, carry="best", restart_private=False))
