"""AliExpress as it is published: pages and products apart, and how they are joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coterie.core.data.sources.csv_blocks import Block, CsvForm
from coterie.core.data.sources.sample_forms import Arrays, Field, Form
from coterie.core.data.sources.text_files import located
from coterie.core.errors import UserError
from coterie.msmt.data.loaded import Loaded, load

_PAGE_CATEGORIES = (*range(2, 9), 32, 33)
_PAGE_NUMBERS = tuple(range(9, 32))
_ITEM_CATEGORIES = (19, 34, 35, 36, 40, 41, 42)
_ITEM_NUMBERS = tuple(number for number in range(2, 49) if number not in _ITEM_CATEGORIES)
_PAGES = tuple(f"user_{number}" for number in range(1, 34))
_ITEMS = tuple(f"item_{number}" for number in range(1, 50))
_LABEL = "item_49"


def official_files(folder: Path, country: str, part: str) -> tuple[Path, Path] | None:
    """Find the two files of a part, ``train`` or ``test``: pages and products.

    Raises:
        UserError: the folder has those of another country instead.
    """
    found = []
    for kind in ("user", "item"):
        ends = [f"_{kind}_{part}{ending}" for ending in (".csv", ".csv.gz", ".zip")]
        paths = sorted(folder.iterdir())
        match = [path for end in ends for path in paths if path.name.lower().endswith(end)]
        mine = [path for path in match if path.name.lower().startswith(f"{country.lower()}_")]
        if match and not mine:
            raise UserError(
                f"{match[0]} is not of {country}, as its folder is: "
                "put the files of each country into a folder of its own"
            )
        if not mine:
            return None
        found.append(mine[0])
    return found[0], found[1]


class Join:
    """Makes samples of products, with what the file of pages says of theirs.

    Neither file has a header. Of a page (33 columns) 1 is the search id, 2-8, 32 and 33 are
    categories, 9-31 numbers. Of a product (49) 1 is the search id, 19, 34-36, 40-42 are categories,
    the others up to 48 numbers, and 49 is the label: 0, 1 clicked, 2 bought. They are joined as
    MTReclib does: products without a page are left out; samples come in the order of the products.

    Pages are kept in memory, or converted and looked up in the file: 16 bytes a page stay in
    memory.

    Args:
        users: the file of pages.
        target: the Arrow file of them; None = in memory.

    Attributes:
        layout: of the file of products.
        about: what a conversion depends on beside that file.

    Raises:
        UserError: the file is malformed, or a search id has two pages.
    """

    layout = CsvForm(
        {
            **{_ITEMS[number - 1]: pa.int64() for number in (1, *_ITEM_CATEGORIES, 49)},
            **{_ITEMS[number - 1]: pa.float32() for number in _ITEM_NUMBERS},
        },
        _ITEMS,
        strangers={len(_PAGES): "this is a file of pages under the name of one of products"},
    )

    def __init__(self, users: Path, target: Path | None) -> None:
        self._pages = load([users], pages_form(), target)
        self._ids, self._order = _index(users, self._pages)
        self._users = users
        stat = users.stat()
        self.about: dict[str, Any] = {"pages": [users.name, stat.st_size, stat.st_mtime_ns]}

    def found(self, block: Block) -> npt.NDArray[np.bool_]:
        """Which products have a page, ``(n,)``."""
        ids = block.numbers(_ITEMS[0])
        at = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
        kept: npt.NDArray[np.bool_] = self._ids[at] == ids
        if block.first_row == 0 and not kept.any():
            raise UserError(
                f"none of the first {len(block):,} products of {block.path} has its page in "
                f"{self._users}: fetch both again, of one country and part"
            )
        return kept

    def values(self, block: Block) -> Arrays:
        """Fields of the samples; of products without a page any."""
        ids = block.numbers(_ITEMS[0])
        at = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
        page = self._pages.rows(self._order[at], ("ids", "numbers"))
        label = self.labels(block)
        return {
            "ids": np.hstack([page["ids"], _columns(block, _ITEM_CATEGORIES)]),
            "numbers": np.hstack([page["numbers"], _columns(block, _ITEM_NUMBERS)]),
            "labels": np.stack([label > 0, label > 1], axis=1),
            "search": ids[:, None],
        }

    @staticmethod
    def labels(block: Block) -> npt.NDArray[np.int64]:
        """Labels of products, ``(n,)``.

        Raises:
            UserError: one is none of 0, 1, 2, naming the line.
        """
        label: npt.NDArray[np.int64] = block.numbers(_LABEL)
        odd = (label < 0) | (label > 2)
        if odd.any():
            row = int(odd.argmax())
            raise block.fault(row, f"column '{_LABEL}' is {label[row]}, none of the labels 0, 1, 2")
        return label


def pages_form() -> Form:
    """Give what is read of a file of pages."""

    def named(numbers: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(_PAGES[number - 1] for number in numbers)

    fields = (
        Field("ids", named(_PAGE_CATEGORIES), "ids", "int32"),
        Field("numbers", named(_PAGE_NUMBERS), "numbers", "float32"),
        Field("search", named((1,)), "numbers", "int64", flat=True),
    )
    what: dict[int | str, str] = {
        len(_ITEMS): "this is a file of products under the name of one of pages"
    }
    layout = CsvForm(Form(fields).layout.reads, _PAGES, strangers=what)
    return Form(fields, layout, check=check_search_ids)


def check_search_ids(block: Block, found: Arrays) -> None:
    """Check the field ``search`` of a block.

    Raises:
        UserError: an id is negative, naming the line.
    """
    below = found["search"] < 0
    if below.any():
        row = int(below.any(axis=1).argmax())
        raise block.fault(row, f"the search id {found['search'][row, 0]} is negative")


def _index(users: Path, pages: Loaded) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Search ids in ascending order, and the row of each."""
    ids = np.concatenate([piece.copy() for piece in pages.pieces("search")])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    twice = np.flatnonzero(ids[1:] == ids[:-1])
    if len(twice):
        row, again = min(zip(order[twice + 1].tolist(), ids[twice].tolist(), strict=True))
        what = f"the search id {again} has a result page before"
        raise located(users, row + 1, what, "fetch the file again", "row")
    return ids, order


def _columns(block: Block, numbers: tuple[int, ...]) -> npt.NDArray[Any]:
    return block.matrix([_ITEMS[number - 1] for number in numbers])
