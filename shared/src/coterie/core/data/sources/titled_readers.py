"""Readers of sets whose items are known by their titles; every file may also be gzipped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.sources.given_split import check_positions, parts_of
from coterie.core.data.sources.readers import build, by_id, ids_of, needed
from coterie.core.data.sources.tables import read_table
from coterie.core.data.sources.text_files import Layout, located, read_text
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import find_file


def read_amazon_titles(folder: Path) -> Interactions:
    """Read Amazon Industrial_and_Scientific with its own split, which is all it knows of time.

    Files: ``Industrial_and_Scientific.interactions.csv`` and, for the brands,
    ``Industrial_and_Scientific.item.json``. A user's position takes the place of the time.

    Raises:
        UserError: also where a user's positions repeat, or a later one is of an earlier part.
    """
    path = needed(folder, "amazon-titles")
    columns = ("user_id", "item_id", "position", "split", "title")
    table = read_table(path, Layout(columns, ",", header=True, quoted=True, whole_lines=True))
    position, item = table.integers("position"), ids_of(table, "item_id")
    user, part = table.coded("user_id", blank=True), parts_of(table, "split")
    check_positions(table, user, position, part)
    titles = dict(zip(reversed(item), reversed(table.strings("title")), strict=True))
    source = f"amazon-titles ({path.name})"
    found = build(
        user, pa.array(item), position, None, titles, None, source, split=part, positions=True
    )
    brands = _brands(folder)
    if brands is None:
        return found
    return replace(found, brands=[brands.get(name, "") for name in found.item_names])


def read_microlens(folder: Path) -> Interactions:
    """Read MicroLens-50k: ``MicroLens-50k_pairs.csv`` and, if there, ``MicroLens-50k_titles.csv``.

    The ``.tsv`` form of the pairs has no times and is not read.
    """
    path = needed(folder, "microlens")
    layout = Layout(("user", "item", "timestamp"), ",", header=True, whole_lines=True)
    table = read_table(path, layout)
    titles = None
    if side := find_file(folder, "MicroLens-50k_titles.csv"):
        names = read_table(side, Layout(("item", "title"), ",", header=True, quoted=True))
        titles = by_id(names, "title")
    return build(
        table.integers("user"),
        table.integers("item"),
        table.integers("timestamp"),
        None,
        titles,
        None,
        f"microlens ({path.name})",
    )


def _brands(folder: Path) -> dict[str, str] | None:
    """Brand by item id, of a JSON object of objects."""
    path = find_file(folder, "Industrial_and_Scientific.item.json")
    if path is None:
        return None
    layout = Layout(())
    try:
        items = json.loads(read_text(path, layout))
    except json.JSONDecodeError as error:
        raise located(path, error.lineno, error.msg, layout.remedy) from None
    except RecursionError:
        raise UserError(f"{path} is no table of items (too deep): {layout.remedy}") from None
    if not isinstance(items, dict) or not all(isinstance(item, dict) for item in items.values()):
        raise UserError(f"{path} is no JSON object of items by id: {layout.remedy}")
    return {name: str(item.get("brand") or "") for name, item in items.items()}
