"""Which settings a run reads: runs that differ in others only are one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.core.methods.registry import METHODS
from coterie.core.settings.schema import changed, values_of
from coterie.msmt.readings import resolve
from coterie.msmt.settings.run import Settings

_SHARING = ("fedavg", "fedprox", "ditto", "fedamp")
_ALIKE = {"fraction": "train.participation", "weighting": "train.weighting"}
_OF_NETWORK = "pf.generator"  # all that the template's network reads in another method


def essential(settings: Settings) -> Settings:
    """Fill the reading's choices, and set what a run does not read to one value.

    Example:
        >>> one = essential(Settings(method="local", reading="literal", compare=True))
        >>> one.reading, one.compare, one.pf == Settings().pf
        ('recommended', None, True)
    """
    settings = replace(settings, compare=None)
    if settings.method != "pf-msmtrec":
        settings = replace(settings, reading="recommended")
    usual: dict[str, Any] = values_of(Settings())
    vain = tuple(_unread(settings))
    own = values_of(settings)
    found = {name: usual[name] for name in own if name.startswith(vain)}
    if settings.model.name == "template" and settings.method != "pf-msmtrec":
        found.pop(_OF_NETWORK, None)
    settings = changed(settings, found)
    return resolve(settings) if settings.method == "pf-msmtrec" else settings


def bare(settings: Settings) -> Settings:
    """Keep what says which samples there are.

    Example:
        >>> bare(Settings(rounds=3, seed=1)) == bare(Settings(method="fedavg", seed=1))
        True
    """
    return Settings(method="local", seed=settings.seed, data=settings.data)


def _unread(settings: Settings) -> list[str]:
    """Beginnings of the names of settings that a method does not look at."""
    method = METHODS.get(settings.method)
    sections = {each.section for each in METHODS.values()} - {None}
    own = method.section if method else None
    known = {name.split(".")[0] for name in values_of(settings)}
    found = [f"{section}." for section in sections - {own} if section in known]
    if settings.method not in _SHARING:
        found.append("train.share")
    if method is None:
        return [*found, "train.weighting"]
    unread = [_ALIKE[name] for name in method.unread if name in _ALIKE]
    return [*found, "pf.", *unread]
