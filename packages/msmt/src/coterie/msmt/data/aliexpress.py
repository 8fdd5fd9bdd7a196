"""AliExpress search (Li et al., CIKM 2020; tianchi 74690): countries are the scenarios.

A sample is a product on a result page: 16 categories, 63 numbers, whether it was clicked and
bought. Files are read as they are published, two a part, or as MTReclib joins them:

- ``AliExpress_NL/train.csv`` and ``test.csv``, with the columns ``search_id``, ``categorical_1`` to
  ``16``, ``numerical_1`` to ``63``, ``click``, ``conversion``;
- ``nl_user_train``, ``nl_item_train``, ``nl_user_test``, ``nl_item_test``, each ``.csv``,
  ``.csv.gz`` or ``.zip`` (see `Join`).

Ids are kept as they are, plus one: they mean the same in all countries, and 0 is free for those
that a country's own training file lacks. Numbers are kept as they are (they are in [0, 1]).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from coterie.core.data.sources.csv_blocks import Block, CsvForm
from coterie.core.data.sources.sample_forms import Arrays, Field, Form
from coterie.core.data.sources.text_files import located
from coterie.core.errors import UserError, nearest
from coterie.core.tensors.keys import Key
from coterie.msmt.data.loaded import (
    Loaded,
    Pages,
    Ranges,
    is_big,
    joint_sizes,
    load,
    parts_of,
    samples_of,
    unknown_note,
)
from coterie.msmt.data.task import Schema, Task
from coterie.msmt.settings import ScenarioData

_PAGE_CATEGORIES = (*range(2, 9), 32, 33)
_PAGE_NUMBERS = tuple(range(9, 32))
_ITEM_CATEGORIES = (19, 34, 35, 36, 40, 41, 42)
_ITEM_NUMBERS = tuple(number for number in range(2, 49) if number not in _ITEM_CATEGORIES)
_PAGES = tuple(f"user_{number}" for number in range(1, 34))
_ITEMS = tuple(f"item_{number}" for number in range(1, 50))
_LABEL = "item_49"


def official_files(folder: Path, part: str) -> tuple[Path, Path] | None:
    """Find the two files of a part, ``train`` or ``test``: pages and products."""
    found = []
    for kind in ("user", "item"):
        ends = [f"_{kind}_{part}{ending}" for ending in (".csv", ".csv.gz", ".zip")]
        paths = sorted(folder.iterdir())
        match = [path for end in ends for path in paths if path.name.lower().endswith(end)]
        if not match:
            return None
        found.append(match[0])
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
    )

    def __init__(self, users: Path, target: Path | None) -> None:
        self._pages = _read_pages(users, target)
        self._ids, self._order = _index(users, self._pages)
        stat = users.stat()
        self.about: dict[str, Any] = {"pages": [users.name, stat.st_size, stat.st_mtime_ns]}

    def found(self, block: Block) -> npt.NDArray[np.bool_]:
        """Which products have a page, ``(n,)``."""
        ids = block.numbers(_ITEMS[0])
        at = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
        return self._ids[at] == ids

    def values(self, block: Block) -> Arrays:
        """Fields of the samples; of products without a page any."""
        ids = block.numbers(_ITEMS[0])
        at = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
        page = self._pages.rows(self._order[at], ("ids", "numbers"))
        label = block.numbers(_LABEL)
        odd = (label < 0) | (label > 2)
        if odd.any():
            row = int(odd.argmax())
            raise block.fault(row, f"column '{_LABEL}' is {label[row]}, none of the labels 0, 1, 2")
        return {
            "ids": np.hstack([page["ids"], _columns(block, _ITEM_CATEGORIES)]),
            "numbers": np.hstack([page["numbers"], _columns(block, _ITEM_NUMBERS)]),
            "labels": np.stack([label > 0, label > 1], axis=1),
            "search": ids[:, None],
        }


def _read_pages(users: Path, target: Path | None) -> Loaded:
    def named(numbers: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(_PAGES[number - 1] for number in numbers)

    fields = (
        Field("ids", named(_PAGE_CATEGORIES), "ids", "int32"),
        Field("numbers", named(_PAGE_NUMBERS), "numbers", "float32"),
        Field("search", named((1,)), "numbers", "int64", flat=True),
    )
    layout = CsvForm(Form(fields).layout.reads, _PAGES)
    return load([users], Form(fields, layout), target)


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
    return np.stack([block.numbers(_ITEMS[number - 1]) for number in numbers], axis=1)


COUNTRIES = ("NL", "ES", "FR", "US")
"""The countries of the paper."""

TASKS = ("ctr", "ctcvr")
N_NUMBERS = 63
CATEGORIES = tuple(f"categorical_{number}" for number in range(1, 17))
NUMBERS = tuple(f"numerical_{number}" for number in range(1, N_NUMBERS + 1))
LABELS = ("click", "conversion")

_KNOWN = (*COUNTRIES, "RU")
_SHIFT = 1
FIELDS = (
    Field("ids", CATEGORIES, "ids", "uint16", shift=_SHIFT),
    Field("numbers", NUMBERS, "numbers", "float32"),
    Field("labels", LABELS, "labels", "uint8"),
    Field("search", ("search_id",), "numbers", "int64", flat=True),
)


def read_aliexpress(
    folder: Path,
    settings: ScenarioData,
    key: Key,
    dtype: torch.dtype = torch.float32,
    *,
    countries: Sequence[str] | None = None,
    streamed: bool | None = None,
    store: Path | None = None,
) -> Task:
    """Read the files of some countries.

    Validation samples are those of the last search ids of the training file (share
    ``settings.valid`` of the ids), so that no result page is torn apart. Under the paper's protocol
    all are trained on, and the test samples take their place.

    Args:
        folder: has a folder for each country, named ``AliExpress_NL`` or ``NL``, or with
            ``_datasets`` behind, in upper or lower case.
        settings: the section ``data``.
        key: unused, nothing is drawn.
        dtype: of the numbers.
        countries: their codes; None = those of the paper that are there.
        streamed: whether samples stay on disk, in Arrow files made once; None = where there is much
            text.
        store: folder of the Arrow files; None = beside the text.

    Raises:
        UserError: a country or a file is missing; a row is malformed, or has a conversion without a
            click; naming file and line.
    """
    if settings.samples is not None:
        raise UserError("'data.samples' has no effect on AliExpress: name fewer countries")
    places = _countries(folder, countries)
    files = [_Files.find(place) for place in places.values()]
    on_disk = (
        is_big([path for each in files for path in each.all]) if streamed is None else streamed
    )
    held = []
    for country, each in zip(places, files, strict=True):
        beside = (store / places[country].name) if store else places[country]
        held.append(_Country.read(country, each, beside if on_disk else None))
    return _task(held, settings, dtype, _absent(places, countries))


@dataclass(frozen=True)
class _Files:
    """Files of one country: two joined ones, or four."""

    train: tuple[Path, ...]
    test: tuple[Path, ...]

    @property
    def all(self) -> tuple[Path, ...]:
        return self.train + self.test

    @staticmethod
    def find(folder: Path) -> _Files:
        joined = [_present(folder, part) for part in ("train", "test")]
        if joined[0] and joined[1]:
            return _Files((joined[0],), (joined[1],))
        train, test = (official_files(folder, part) for part in ("train", "test"))
        if train and test:
            return _Files(train, test)
        raise UserError(
            f"{folder} has neither train.csv and test.csv nor the published files "
            "(CC_user_train, CC_item_train, CC_user_test, CC_item_test, each .zip or .csv): put "
            "them there"
        )


@dataclass(frozen=True)
class _Country:
    """Samples of a country, and where its result pages are."""

    name: str
    train: Loaded
    test: Loaded
    pages: Pages
    test_pages: Pages

    @staticmethod
    def read(name: str, files: _Files, target: Path | None) -> _Country:
        train = _load(files.train, target and target / "train.arrow", None)
        test = _load(files.test, target and target / "test.arrow", train)
        pages, others = (Pages.of(each.pieces("search")) for each in (train, test))
        return _Country(name, train, test, pages, others)

    def cut(self, settings: ScenarioData) -> tuple[Ranges, Ranges]:
        """Rows to train on and rows to choose by."""
        return self.pages.cut(0.0 if settings.paper_protocol else settings.valid)

    def notes(self) -> list[str]:
        """Say what is odd, a line each."""
        found = unknown_note(f"{self.name} test", CATEGORIES, self.test.unknown)
        for part, loaded in (("train", self.train), ("test", self.test)):
            if loaded.left_out:
                what = f"{loaded.left_out:,} products of no result page are left out"
                found.append(f"{self.name} {part}: {what}")
        if apart := self.pages.apart:
            what = (
                f"the rows of {apart:,} search ids are not together, and are still not torn apart"
            )
            found.append(f"{self.name} train: {what} by the validation split")
        if shared := self.pages.shared(self.test_pages):
            what = "of the test file are in the training file too (fewer would be right, unless"
            found.append(
                f"{self.name}: {shared:,} search ids {what} each file counts its own pages)"
            )
        return found


def _load(files: tuple[Path, ...], target: Path | None, train: Loaded | None) -> Loaded:
    vocabulary = None if train is None else train.vocabulary
    if len(files) == 1:
        form = Form(FIELDS, check=_check_funnel)
        return load(files, form, target, vocabulary=vocabulary)
    users, items = files
    join = Join(users, target and target.with_name(f"{target.stem}_users.arrow"))
    form = Form(FIELDS, join.layout, join.values, join.found)
    return load([items], form, target, vocabulary=vocabulary, about=join.about)


def _check_funnel(block: Block, found: Arrays) -> None:
    torn = found["labels"][:, 1] > found["labels"][:, 0]
    if torn.any():
        raise block.fault(int(torn.argmax()), "a conversion without a click")


def _task(
    held: list[_Country], settings: ScenarioData, dtype: torch.dtype, notes: list[str]
) -> Task:
    cuts = [each.cut(settings) for each in held]
    train = samples_of([(c.train, cut[0]) for c, cut in zip(held, cuts, strict=True)], dtype)
    test = samples_of([(c.test, [(0, c.test.count)]) for c in held], dtype)
    valid = test
    if not settings.paper_protocol:
        valid = samples_of([(c.train, cut[1]) for c, cut in zip(held, cuts, strict=True)], dtype)
    schema = Schema(
        TASKS,
        tuple(each.name for each in held),
        joint_sizes([each.train for each in held], _SHIFT),
        N_NUMBERS,
        funnel=True,
    )
    notes += [note for each in held for note in each.notes()]
    return Task("aliexpress", schema, parts_of(train, valid, test), notes=tuple(notes))


def _countries(folder: Path, wanted: Sequence[str] | None) -> dict[str, Path]:
    """Folders of the countries."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: check the path")
    there: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        name = path.name.upper().removeprefix("ALIEXPRESS_").removesuffix("_DATASETS")
        if path.is_dir() and name in _KNOWN:
            there.setdefault(name, path)
    for name in wanted or ():
        if name not in there:
            hint = nearest(name, there) if there else "it has no country"
            raise UserError(f"{folder} has no folder AliExpress_{name}: {hint}")
    names = wanted or [name for name in COUNTRIES if name in there]
    if not names:
        raise UserError(f"{folder} has no folder such as AliExpress_NL: check the path")
    return {name: there[name] for name in names}


def _absent(places: dict[str, Path], wanted: Sequence[str] | None) -> list[str]:
    lacking = [name for name in COUNTRIES if name not in places]
    if wanted is not None or not lacking:
        return []
    return [f"countries of the paper that are not there: {', '.join(lacking)}"]


def _present(folder: Path, part: str) -> Path | None:
    paths = (folder / f"{part}.csv{ending}" for ending in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)
