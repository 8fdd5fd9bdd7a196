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

import torch

from coterie.core.data.sources.csv_blocks import Block
from coterie.core.data.sources.first_look import check_different, look
from coterie.core.data.sources.sample_forms import Arrays, Field, Form
from coterie.core.errors import UserError, nearest
from coterie.core.tensors.keys import Key
from coterie.msmt.data.aliexpress_pages import Join, check_search_ids, official_files, pages_form
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
    files = [_Files.find(place, country) for country, place in places.items()]
    check_different([path for each in files for path in each.all])
    on_disk = (
        is_big([path for each in files for path in each.all]) if streamed is None else streamed
    )
    stores = [(store / place.name) if store else place for place in places.values()]
    for each, beside in zip(files, stores, strict=True):
        each.look(beside)
    held = [
        _Country.read(country, each, beside if on_disk else None)
        for country, each, beside in zip(places, files, stores, strict=True)
    ]
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
    def find(folder: Path, country: str) -> _Files:
        joined = [_present(folder, part) for part in ("train", "test")]
        if joined[0] and joined[1]:
            return _Files((joined[0],), (joined[1],))
        train, test = (official_files(folder, country, part) for part in ("train", "test"))
        if train and test:
            return _Files(train, test)
        raise UserError(
            f"{folder} has neither train.csv and test.csv nor the published files "
            "(CC_user_train, CC_item_train, CC_user_test, CC_item_test, each .zip or .csv): put "
            "them there"
        )

    def look(self, store: Path) -> None:
        """Look at the start and the end of files that are not converted, before one is read.

        Raises:
            UserError: a file is not what its name says, or malformed there.
        """
        for part, paths in (("train", self.train), ("test", self.test)):
            if (store / f"{part}.arrow").exists():
                continue
            if len(paths) == 1:
                form = Form(FIELDS, check=_check)
                look(paths[0], form.layout, form.values)
                continue
            form = pages_form()
            look(paths[0], form.layout, form.values)
            look(paths[1], Join.layout, Join.labels)


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
        if self.test.count > self.train.count:
            found.append(
                f"{self.name}: the test file has more samples than the training file, the "
                "published one has fewer: are they swapped?"
            )
        if shared := self.pages.shared(self.test_pages):
            what = "of the test file are in the training file too (fewer would be right, unless"
            found.append(
                f"{self.name}: {shared:,} search ids {what} each file counts its own pages)"
            )
        return found


def _load(files: tuple[Path, ...], target: Path | None, train: Loaded | None) -> Loaded:
    vocabulary = None if train is None else train.vocabulary
    if len(files) == 1:
        form = Form(FIELDS, check=_check)
        return load(files, form, target, vocabulary=vocabulary)
    users, items = files
    join = Join(users, target and target.with_name(f"{target.stem}_users.arrow"))
    form = Form(FIELDS, join.layout, join.values, join.found, _check)
    return load([items], form, target, vocabulary=vocabulary, about=join.about)


def _check(block: Block, found: Arrays) -> None:
    check_search_ids(block, found)
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
