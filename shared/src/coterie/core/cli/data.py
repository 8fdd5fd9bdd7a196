"""``coterie data [NAME]``: data sets that are here, blocks or samples of one, its export."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.core.cli.command import (
    JSON_HELP,
    Arguments,
    cell,
    print_json,
    print_rows,
    say,
    tell,
    tell_facts,
)
from coterie.core.data.interactions.interactions import (
    TEST,
    TRAIN,
    VALID,
    Interactions,
    in_words,
    k_core,
)
from coterie.core.data.interactions.splits import temporal_blocks
from coterie.core.data.sources.catalogue import list_data, load_all, load_filtered, sample_counts
from coterie.core.errors import UserError, nearest
from coterie.core.registry.data_sets import data_sets, default_core
from coterie.core.registry.papers import DataSet
from coterie.core.settings.parser import settings_parser
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


# ``coterie data [NAME]``: the data sets that are here, or the blocks or samples of one.

_COUNTED = ("users", "items", "interactions")


def run_data(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("data", "Show the data sets that are here, or the blocks of one.")
    parser.add_argument("name", nargs="?", help="a data set, or the path of a file")
    parser.add_argument("--data_root", "--data.root", metavar="DIR", help="default: $COTERIE_DATA")
    parser.add_argument("--data.columns", metavar="user=u,item=i,time=t", help="of a file")
    parser.add_argument("--data.min_rating", metavar="R", help="lowest rating that counts")
    parser.add_argument("--data.min_interactions", metavar="K", help="k of the k-core filter")
    parser.add_argument("--out", metavar="DIR", help="export the filtered interactions to a folder")
    parser.add_argument("--format", metavar="F", help="of the export: hf (default), parquet, csv")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    given = parser.parse_args(argv)
    if given.name is None:
        if given.out is not None:
            raise UserError("--out exports one data set: name it, as coterie data NAME --out DIR")
        _all(given.data_root, given.json)
        return
    names = ("columns", "min_rating", "min_interactions")
    flags = {name: text for name in names if (text := vars(given)[f"data.{name}"]) is not None}
    words = [f"--{key}={text}" for key, text in flags.items()]
    typed, _ = settings_parser(DataSettings).flags(words)
    settings = DataSettings(name=given.name, root=given.data_root, **typed)
    if not export_data(settings, given.out, given.format):
        _one(settings, given.json)


def _all(root: str | None, as_json: bool) -> None:
    listings = [asdict(listing) for listing in list_data(root)]
    rows: list[dict[str, Any]] = [
        row | {"folder": None if row["folder"] is None else str(row["folder"])} for row in listings
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        tell(row["about"], f"{row['name']}: ")
        counts = [f"{cell(row[what])} {what}" for what in _COUNTED if row[what] is not None]
        here = [cell(row["present"]), *([row["folder"]] if row["folder"] else [])]
        more = {"terms": row["terms"], "here": here, "problem": row["problem"]}
        tell_facts("", {"counts": counts or None} | more)


def _one(settings: DataSettings, as_json: bool) -> None:
    known = data_sets().get(settings.name)
    if known is not None and known.kind == "samples":
        _samples(known, settings, as_json)
    else:
        _interactions(settings, as_json)


def _samples(entry: DataSet, settings: DataSettings, as_json: bool) -> None:
    if settings != DataSettings(name=settings.name, root=settings.root):
        raise UserError(
            f"'{entry.name}' holds labelled samples: --data.columns, --data.min_rating "
            "and --data.min_interactions are for interactions, leave them out"
        )
    rows = sample_counts(entry.name, settings.root)
    if as_json:
        named = rows or [{"part": "generated", "samples": None}]
        print_json([{"name": entry.name} | row for row in named])
        return
    tell(entry.about, f"{entry.name}: ")
    if rows:
        print_rows(rows, title="Labelled samples")
    else:
        say("It is generated anew when a run begins.")


def _interactions(settings: DataSettings, as_json: bool) -> None:
    core = settings.min_interactions
    core = default_core(settings.name) if core is None else core
    found = load_all(settings)
    kept = k_core(found, core)
    if kept.split is None:
        statistics = temporal_blocks(kept).statistics()
        what = "Blocks, users and items accumulated,"
    else:
        statistics = _parts(kept, kept.split)
        what = "Parts it comes in"
    if not as_json:
        users = f"{found.n_users:,} users, {found.n_items:,} items"
        tell(f"{found.source}: {len(found):,} interactions, {users}")
    for line in in_words(kept.dropped):
        if as_json:
            sys.stderr.write(f"coterie: rows {line}\n")  # stdout holds the table only
        else:
            tell(f"Rows {line}")
    title = f"{what} after the {core}-core filter ({len(kept):,} interactions)"
    print_rows(statistics, title, as_json)


def _parts(kept: Interactions, split: Tensor) -> list[dict[str, Any]]:
    """Count the parts of a set that knows the order of interactions, but no times."""
    numbers = {"train": TRAIN, "valid": VALID, "test": TEST}
    chosen = {name: kept.take(split == number) for name, number in numbers.items()}
    return [
        {
            "part": name,
            "users": part.user.unique().numel(),
            "items": part.item.unique().numel(),
            "interactions": len(part),
        }
        for name, part in chosen.items()
    ]
