"""The checkpoints of a run, and what its state is bound to, compared on loading."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.registry.data_sets import data_sets, is_hub_name
from coterie.core.run.lasting import MORE, differing, fixed
from coterie.core.run.runfolder import RunFolder
from coterie.core.settings.schema import values_of
from coterie.core.tensors.saved import digest, load, resolve

LAST, BEST = "last.ckpt", "best.ckpt"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint: ``federation``, the run, beside what Lightning keeps of a training.

    Raises:
        UserError: it, or an append-only entry that it refers to, cannot be read or is damaged; or
            it is no checkpoint.
    """
    found = load(path)
    if not isinstance(found, dict) or "federation" not in found:
        raise UserError(f"{path} is no checkpoint of a run: put back a copy of it")
    return found | {"federation": resolve(found["federation"], path.parent)}


# What the state of a run is bound to: data, ids, constants and settings, compared on loading.
#
# State is numbers by number of client and item. Loaded beside other data it would be somebody
# else's, and nothing in it would look wrong. So every checkpoint carries digests, and whatever
# loads one asks here first.

Bound = dict[str, Any]
"""``data``, ``ids`` and ``constants``, a digest each, and ``settings`` with the seed."""

_REMEDY = "start a new run with another --run.name"


def bound_to(federation: Federation) -> Bound:
    """Say what state of a federation is bound to; plain values."""
    constants = {
        name: value
        for half in (federation.server, federation.client)
        if half is not None  # clients may run elsewhere
        for name, value in half.constants().items()
    }
    return {
        "data": digest(list(federation.blocks)),
        "ids": federation.origin(),
        "constants": _hash(constants),
        "settings": settings_of(federation),
    }


def settings_of(federation: Federation) -> dict[str, Any]:
    """The settings of a federation that a run keeps, the seed among them, as JSON has them."""
    found = federation.settings
    if found is None:
        own = getattr(federation.client, "settings", None)
        found = {} if own is None else values_of(own)
    if federation.aggregation is not None:
        rule = values_of(federation.aggregation.settings)
        found = {**found, **{f"aggregate.{key}": value for key, value in rule.items()}}
    return json.loads(json.dumps({**fixed(found), "seed": federation.seed}, default=str))


def check_bound(saved: Mapping[str, Any], now: Bound, federation: Federation) -> int:
    """Refuse a checkpoint that was not made from these data, or their first blocks, and constants.

    Args:
        saved: what `FederatedRun.to_plain` gave.
        now: what the run is bound to that would load it.
        federation: of that run.

    Returns:
        How many blocks there were.

    Raises:
        UserError: it was not; says which of them differs.
    """
    then = saved.get("bound")
    if then is None:
        raise UserError(
            "the checkpoint does not say which data it was trained on, as it is of an older "
            f"version: {_REMEDY}"
        )
    blocks = _blocks_of(then, now, federation)
    if blocks is None:
        raise UserError(
            "the data have changed since the run was trained, or are other ones: put them back "
            f"as they were, or {_REMEDY}"
        )
    if then["constants"] != now["constants"]:
        raise UserError(
            "frozen parameters, buffers or other constants of the module are not those that the "
            f"run was trained with: make or load the same ones in every process, or {_REMEDY}"
        )
    return blocks


def _blocks_of(then: Bound, now: Bound, federation: Federation) -> int | None:
    """How many blocks the data had that a run was trained on; None where they were other data."""
    if then["data"] == now["data"] and then["ids"] == now["ids"]:
        return len(federation.blocks)
    for earlier in federation.earlier:
        first = list(federation.blocks[: earlier.blocks])
        if then["data"] == digest(first) and then["ids"] == earlier.origin():
            return earlier.blocks
    return None


def _gone(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Name a setting of a rule that there was and is not any more."""
    return next((key for key in then if key.startswith("aggregate.") and key not in now), None)


def check_settings(saved: Mapping[str, Any], federation: Federation) -> None:
    """Refuse a checkpoint of a run with other settings, but for those that may change.

    Raises:
        UserError: one differs; names it.
    """
    then = saved.get("bound", {}).get("settings")
    now = settings_of(federation)
    for place in ("data.name", MORE):  # wherever they are: digests say whether they are the same
        now.pop(place, None)
    key = None if then is None else differing(then, now) or _gone(then, now)
    if key is not None:
        raise UserError(
            f"the checkpoint is of a run with another '{key}': it has {_shown(then.get(key))}, not "
            f"{_shown(now.get(key))}; set that, or {_REMEDY}"
        )


def check_folder(folder: Path, federation: Federation) -> None:
    """Refuse to take the data of a run for those that its folder's checkpoint was trained on.

    For what trains a run again, in place of loading its state. Without a checkpoint nothing is
    known, and nothing refused.

    Raises:
        UserError: they are others, or the checkpoint is damaged.
    """
    path = folder / "checkpoints" / LAST
    if path.is_file():
        with naming(folder):
            check_bound(read_checkpoint(path)["federation"], bound_to(federation), federation)


def check_data_there(folder: RunFolder) -> None:
    """Say which run wants which file, where that of the user is not there any more.

    Raises:
        UserError: it is not.
    """
    values = values_of(folder.settings)
    for name in map(str, (values.get("data.name"), *values.get(MORE, ()))):
        path = Path(name).expanduser()
        own = "/" in name and name not in data_sets() and not is_hub_name(name)
        if own and not path.exists():
            raise UserError(
                f"{folder.path} was trained on {path.absolute()}, which is not there: put the file "
                f"back, or {_REMEDY}"
            )


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Begin the message of a `UserError` with the run that it is about."""
    try:
        yield
    except UserError as error:
        if str(folder) in str(error):
            raise
        raise UserError(f"{folder}: {error}") from error


def _hash(constants: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(constants, sort_keys=True).encode()).hexdigest()


def _shown(value: Any) -> str:
    return "null" if value is None else f"'{value}'"
