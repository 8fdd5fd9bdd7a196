"""What the numbers of a run depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.llm.readings import resolve
from coterie.llm.settings.run import MixingSettings, Settings

_ATTENTION = {"similarity", "similarity_on", "size_weighted"}
_HEATING = {"alpha", "beta", "tau", "exponent", "size_weighted"}
# What of the section mixing a method reads.
_READS: dict[str, set[str]] = {
    "pplr": _ATTENTION | _HEATING,
    "pplr-attention": _ATTENTION,
    "pplr-heating": _HEATING,
}
# Sections of methods without a language model; all that such a method reads, beside the data.
_SECTIONS = ("fedmf", "lightfr", "fedpergnn", "mf", "lightgcn")
_COMMON = ("seed", "data", "engine", "privacy", "logger", "run")


def essential(settings: Settings) -> Settings:
    """Fill the reading's choices, and set what the method does not read to one value.

    Example:
        >>> essential(Settings(method="fedavg", mixing=MixingSettings(alpha=0.1))).mixing.alpha
        0.7
    """
    if settings.method in _SECTIONS:
        return resolve(replace(plain(settings, settings.method), method=settings.method))
    filled = resolve(settings)
    reads = _READS.get(filled.method, set())
    kept: dict[str, Any] = {name: getattr(filled.mixing, name) for name in reads}
    unread: dict[str, Any] = {name: getattr(Settings(), name) for name in _SECTIONS}
    less = replace(filled, reading="recommended", mixing=MixingSettings(**kept), **unread)
    if filled.method != "fedprox":
        less = replace(less, train=replace(less.train, mu=0.0))
    return resolve(less)


def plain(settings: Settings, section: str) -> Settings:
    """Keep the data, the seed and one section, if there is such a section."""
    sections = (*_COMMON, section) if section in _SECTIONS else _COMMON
    kept: dict[str, Any] = {name: getattr(settings, name) for name in sections}
    return resolve(Settings(**kept))
