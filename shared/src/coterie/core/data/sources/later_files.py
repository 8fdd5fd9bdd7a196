"""The stream of a run whose data grew: as it was at first, and after each file that was added."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.core.data.interactions.interactions import Interactions, k_core
from coterie.core.data.interactions.later import with_all_had, with_later
from coterie.core.data.interactions.splits import Stream, temporal_blocks
from coterie.core.data.sources.catalogue import core_of, highly_rated, load, load_filtered
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import data_sets
from coterie.core.settings.sections import GrowingData


def load_stages(settings: GrowingData, fractions: Sequence[float]) -> list[Stream]:
    """Load the data cut into blocks, then the same with the rows of each further file as a block.

    The stage before a file is what a run had that was trained without it, number by number.

    Args:
        settings: which data.
        fractions: as `coterie.core.data.interactions.splits.temporal_blocks` takes them, of the
            data without the files.

    Raises:
        UserError: data or a file are missing, malformed or left without a row, or as
            `coterie.core.data.interactions.later.with_later`.
    """
    if not settings.more:
        return [temporal_blocks(load_filtered(settings), fractions)]
    core = core_of(settings)
    read = [load(settings.name, settings.root, settings.columns)]
    first = k_core(highly_rated(read[0], settings.min_rating), core)
    stages = [temporal_blocks(first, fractions)]
    for name in settings.more:
        read.append(_load_file(settings, name))
        new = highly_rated(read[-1], settings.min_rating)
        stages.append(with_all_had(with_later(stages[-1], new, core), read))
    return stages


def _load_file(settings: GrowingData, name: str) -> Interactions:
    """Read rows to be added, whose columns are those of a file of the user's own."""
    if name in data_sets():
        raise UserError(
            f"'data.more' adds files to the rows of a run, and '{name}' is a data set: name a file"
        )
    try:
        return load(name, settings.root, settings.columns)
    except UserError as error:
        said, hint, _ = str(error).partition(" (--data.columns")
        if not hint:
            raise
        raise UserError(
            f"{said}: a file that is added has the columns of the run's, or where that is a data "
            "set they are called user, item and time"
        ) from None


def files_of(settings: object) -> list[Path]:
    """The paths, there or not, of the data that settings name."""
    names = [getattr(settings, "name", None), *getattr(settings, "more", ())]
    return [Path(str(name)).expanduser() for name in names if name is not None]
