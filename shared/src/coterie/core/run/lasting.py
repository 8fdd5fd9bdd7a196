"""Which settings a run keeps as long as it lives, and what may be added to its data. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core.registry.data_sets import data_sets
from coterie.core.settings.sections import GrowingData

_WHERE = ("name", "processes", "address", "deadline", "start", "min_clients", "patience")
_SPEED = tuple(
    f"engine.{name}" for name in ("device", "chunk", "threads", "kernels", "workers", *_WHERE)
)
MAY_CHANGE = ("rounds", "run", "logger", "trainer", *_SPEED, "data.root")
MORE = "data.more"
"""What a run may get more of: files of later rows, each a block. A paper that trains on one block
after the other has this setting."""
_WHOLE_RUN = ("logger.transcript",)  # of a part of the rounds it would be worth nothing
_DATA = tuple(("data", key) for key in ("name", "more", "root"))
_PLACES = (*_DATA, ("model", "path"), ("expert", "vectors"))


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Name the first setting that differs and may not, of flat keys and values."""
    return next((key for key in fixed(new) if not _agree(key, old.get(key), new[key])), None)


def _agree(key: str, old: Any, new: Any) -> bool:
    """Whether a setting may follow on another; the list of later rows may get longer."""
    if key != MORE:
        return bool(old == new)
    had = list(old or ())
    return list(new or ())[: len(had)] == had


def fixed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run keeps as long as it lives, of flat keys and values."""
    free = tuple(f"{key}." for key in MAY_CHANGE)
    return {
        key: value
        for key, value in values.items()
        if key in _WHOLE_RUN or not f"{key}.".startswith(free)
    }


def from_the_start(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run has from its first round on: `fixed`, but for what was added."""
    return {key: value for key, value in fixed(values).items() if key != MORE}


def located(settings: Any) -> Any:
    """Settings that name the same files wherever they are read: what is on the disk, absolutely.

    Those are a file of the user's own, the folder of the data sets, and that of a model.
    """
    for section, key in _PLACES:
        part = getattr(settings, section, None)
        value = getattr(part, key, None)
        if part is None or value is None:
            continue
        many = isinstance(value, tuple)
        there = [_absolute(str(one), key == "root") for one in (value if many else (value,))]
        found = tuple(there) if many else there[0]
        if found != value:
            settings = replace(settings, **{section: replace(part, **{key: found})})
    return settings


def _absolute(name: str, always: bool) -> str:
    """The absolute path of what is on the disk; any other name stays as it is."""
    path = Path(name).expanduser()
    if path.is_absolute() or name in data_sets() or not (always or path.exists()):
        return name
    return str(path.absolute())


# Other data for a run that goes on are more rows, where its paper trains block by block.


def grown(wanted: Any, stored: Any) -> Any:
    """Add the data that are wanted to those of the run, in place of training on them alone.

    The name of a data set stays, and is refused as another setting: what is added has the ids of
    the run.

    Args:
        wanted: settings that a run is to go on with; those of the call lie over the stored ones.
        stored: settings of the run.

    Returns:
        The settings with ``data.name`` of the run, and the file at the end of ``data.more`` where
        it was not added before; unchanged where the data are the run's own, or cannot grow.
    """
    data, own = located(wanted).data, located(stored).data
    if not isinstance(data, GrowingData) or data.name == own.name or data.name in data_sets():
        return wanted
    more = data.more if data.name in data.more else (*data.more, data.name)
    return replace(wanted, data=replace(wanted.data, name=own.name, more=more))


def has_more(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether settings, flat keys and values, name more files of later rows than before."""
    return len(now.get(MORE) or ()) > len(then.get(MORE) or ())
