"""Which settings a run reads: runs that differ in others only are one."""

from __future__ import annotations

from dataclasses import replace

from coterie.assisted.readings import resolve, unread
from coterie.assisted.settings.run import Settings
from coterie.core.settings.schema import changed, values_of


def essential(settings: Settings) -> Settings:
    """Fill the reading's choices, and set what a run does not read to one value.

    Rankings are of all organisations, as the paper's, and nothing is drawn.

    Example:
        >>> one = essential(Settings(method="joint"))
        >>> one.data.domains, one.evaluation
        ('uniform', 'pooled')
    """
    settings = replace(settings, evaluation="pooled", compare=None)
    if settings.model.name == "rate":  # a column is nobody else's: alone ties only differ
        settings = replace(settings, method="joint")
    settings = resolve(settings)
    own, usual = values_of(settings), values_of(resolve(Settings()))
    vain = tuple(unread(settings) + _unread_by_tables(settings))
    found = {name: usual[name] for name in own if name.startswith(vain)}
    if settings.reading == "released":  # whose averages are by batches
        found.pop("train.batch_rows", None)
    if settings.method == "joint":
        found["data.domains"] = "uniform"  # goes with both alignments
    return changed(settings, found)


def _unread_by_tables(settings: Settings) -> list[str]:
    """What has no effect on the numbers of a run, beside what no run of the method reads."""
    found = []
    if settings.method != "mtal":
        found.append("privacy.")  # nothing that it covers is sent
    elif "lbfgs" not in (settings.assist.eta_rule, settings.assist.weights):
        found.append("assist.lbfgs_lr")
    if settings.reading == "released":
        found.append("data.valid")
    return found
