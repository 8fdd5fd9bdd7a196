"""``coterie data NAME --out DIR``: a data set as papers see it, in files for other tools."""

from __future__ import annotations

import sys
from pathlib import Path

from coterie.core.cli.output import say
from coterie.core.data.interactions.dropped import in_words
from coterie.core.data.sources.catalogue import load_filtered
from coterie.core.errors import UserError, nearest
from coterie.core.registry.data_sets import data_sets
from coterie.core.settings.sections import DataSettings


def export_data(settings: DataSettings, out: str | None, form: str | None) -> bool:
    """Export a data set if that is asked for.

    Args:
        settings: which data, and how they are filtered.
        out: the folder; None = nothing is asked for.
        form: ``hf``, ``parquet`` or ``csv``; None = ``hf``.

    Returns:
        Whether it was.

    Raises:
        UserError: ``form`` without ``out`` or unknown, labelled samples, or as `load_filtered` and
            `coterie.core.data.sources.export.export`.
    """
    if out is None:
        if form is not None:
            raise UserError("--format is of an export: name its folder by --out DIR")
        return False
    from coterie.core.data.sources.export import FORMATS, export  # pyarrow is heavy

    form = form or "hf"
    if form not in FORMATS:
        raise UserError(f"'--format {form}' is unknown: {nearest(form, FORMATS)}")
    entry = data_sets().get(settings.name)
    if entry is not None and entry.kind == "samples":
        raise UserError(f"'{entry.name}' holds labelled samples: interactions can be exported")
    found = load_filtered(settings)
    done = export(found, Path(out), form)
    for line in in_words(found.dropped):
        sys.stderr.write(f"coterie: rows {line}\n")
    for what in done.lacks:
        sys.stderr.write(f"coterie: {what} are not exported, as files have no column for them\n")
    say(f"{done.rows:,} interactions of {found.source} are in {done.folder}")
    say(f"Train on them by: {done.flags}")
    return True
