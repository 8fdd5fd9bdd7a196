"""Data sets of Hugging Face's hub: fetched once, by the package ``datasets``, and kept as a folder.

What is kept is not looked for again, as with all data sets that are downloaded: the same name
gives the same rows until its folder is deleted, with or without a network.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core.data.sources.dataset_objects import keeping, put
from coterie.core.data.sources.saved_sets import INFO, STATE
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import data_root
from coterie.core.registry.hub_names import HubName, hub_name, is_hub_name

log = logging.getLogger(__name__)

_PROBE = 5.0  # seconds; the hub's own client tries for 23 before it gives up


def own_path(name: str, root: str | Path | None = None) -> Path:
    """Path of a file or folder of the user's own; what is on the hub is fetched if it is not here.

    Args:
        name: a path, or ``hf:OWNER/NAME[:CONFIG][@REVISION][#SPLIT]``.
        root: folder of the data sets; default $COTERIE_DATA, else ~/.cache/coterie.

    Raises:
        UserError: it is not here and cannot be fetched; or it has several configurations or
            splits, and the name says none.
    """
    if not is_hub_name(name):
        return Path(name).expanduser()
    wanted = hub_name(name)
    target = wanted.folder(data_root(root))
    if not all((target / file).is_file() for file in (INFO, STATE)):
        _fetch(wanted, target)
    return target


def _fetch(wanted: HubName, target: Path) -> None:
    datasets = _package(wanted)
    _check_reachable(wanted)
    try:
        commit = _commit(wanted)
        split = _split(datasets, wanted, commit)
        found = datasets.load_dataset(
            wanted.repository, wanted.config, revision=commit, split=split
        )
    except (MemoryError, UserError):
        raise
    except Exception as error:  # of four libraries, with classes of their own or none
        why = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(f"cannot fetch {wanted} ({why}): check name, revision and access") from None
    if not len(found):
        raise UserError(f"{wanted} has no rows: choose another split")
    with keeping(target.parent) as temporary:
        found.save_to_disk(str(temporary))
        about = {"name": str(wanted), "commit": commit}
        (temporary / "_hub.json").write_text(json.dumps(about) + "\n")
        put(temporary, target)
    log.info("fetched %s at commit %s into %s", wanted, commit or "?", target)


def _package(wanted: HubName) -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{wanted} is fetched by the package datasets, which is not here: "
            "pip install 'coterie-core[datasets]'"
        ) from None
    return datasets


def _check_reachable(wanted: HubName) -> None:
    """Ask the hub for a sign of life, once.

    Raises:
        UserError: there is none.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        why = "HF_HUB_OFFLINE is set"
    else:
        try:
            get_session().head(constants.ENDPOINT, timeout=_PROBE)
            return
        except Exception as error:  # of whichever library its client uses
            why = f"{constants.ENDPOINT}: {(str(error) or type(error).__name__).splitlines()[0]}"
    raise UserError(
        f"{wanted} is not here, and the hub cannot be reached ({why}): try again with a network, "
        "or give a folder made by save_to_disk"
    )


def _commit(wanted: HubName) -> str | None:
    """The commit that is meant now, so that splits and rows are of the same one."""
    from huggingface_hub import HfApi

    return HfApi().dataset_info(wanted.repository, revision=wanted.revision, timeout=60).sha


def _split(datasets: Any, wanted: HubName, commit: str | None) -> str:
    """The split that is asked for, or the only one.

    Raises:
        UserError: there are several configurations or splits and the name says none, or another.
    """
    kinds = datasets.get_dataset_config_names(wanted.repository, revision=commit)
    if wanted.config not in kinds and (wanted.config is not None or len(kinds) > 1):
        raise UserError(_choose(wanted, "configurations", kinds, replace(wanted, config=kinds[0])))
    splits = datasets.get_dataset_split_names(
        wanted.repository, wanted.config or kinds[0], revision=commit
    )
    if wanted.split is None and len(splits) == 1:
        return str(splits[0])
    if wanted.split not in splits:
        raise UserError(_choose(wanted, "splits", splits, replace(wanted, split=splits[0])))
    return str(wanted.split)


def _choose(wanted: HubName, what: str, names: list[str], one: HubName) -> str:
    some = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"{wanted} has the {what} {some}: name one, as {one}"
