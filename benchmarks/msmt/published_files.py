"""Random files in the published forms of AliExpress and Tenrec, of any number of rows.

A few ten thousand rows are drawn and written over and over, with search ids that go on, so that
writing costs little beside reading. Numbers look like those of the published samples: 44 % zeros,
the others of four to six decimals, a few of 18 digits.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np

from benchmarks.msmt.steps import ALIEXPRESS
from coterie.msmt.data.aliexpress import CATEGORIES, LABELS, NUMBERS
from coterie.msmt.data.tenrec import FILES, HISTORY

AliExpressForm = Literal["joined", "official", "zipped"]

ALIEXPRESS_ROWS = {
    "NL": (12_100_000, 5_600_000),
    "ES": (22_300_000, 9_300_000),
    "FR": (18_200_000, 8_800_000),
    "US": (19_900_000, 7_500_000),
}
"""Rows of ``train.csv`` and ``test.csv`` of each country."""
TENREC_ROWS = {"QK-video": 120_342_306, "QB-video": 2_442_299}
"""Rows of each scenario's file."""

_PAGES = 5_000  # distinct ones; with their products a block of some 15 MB
_BLOCK = 200_000  # rows of Tenrec
_PRODUCTS = 6  # of a page, the mean: how many there are is not published
_ZEROS, _LONG = 0.44, 0.03  # shares of the numbers
_SIZES = ALIEXPRESS.vocabularies
_PAGE_IDS, _PAGE_NUMBERS = 9, 23  # come from the file of pages, the others from that of products


@dataclass(frozen=True)
class _Products:
    """Drawn rows: ``page`` of each counts up; the cells of pages and of products as text."""

    page: list[int]
    pages: list[tuple[list[str], list[str]]]
    products: list[tuple[list[str], list[str]]]
    labels: list[int]

    @staticmethod
    def drawn() -> _Products:
        rng = np.random.default_rng(0)
        page = np.repeat(np.arange(_PAGES), rng.integers(1, 2 * _PRODUCTS, _PAGES)).tolist()
        return _Products(
            page,
            _cells(rng, _PAGES, _SIZES[:_PAGE_IDS], _PAGE_NUMBERS),
            _cells(rng, len(page), _SIZES[_PAGE_IDS:], len(NUMBERS) - _PAGE_NUMBERS),
            rng.choice([0, 1, 2], len(page), p=[0.97, 0.025, 0.005]).tolist(),
        )


def write_aliexpress(folder: Path, country: str, form: AliExpressForm, share: float = 1.0) -> int:
    """Write the files of a country.

    Args:
        folder: that of the country; made if it is not there.
        country: in `ALIEXPRESS_ROWS`.
        form: ``joined``, ``official`` (four files as CSV), or ``zipped`` (as they are published).
        share: of the rows.

    Returns:
        Number of rows of both parts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn, done, first = _Products.drawn(), 0, 1
    for part, published in zip(("train", "test"), ALIEXPRESS_ROWS[country], strict=True):
        rows = max(int(share * published), 1)
        if form == "joined":
            first = _write_joined(folder / f"{part}.csv", drawn, rows, first)
        else:
            ending = ".zip" if form == "zipped" else ".csv"
            names = [f"{country.lower()}_{kind}_{part}{ending}" for kind in ("user", "item")]
            first = _write_official(folder / names[0], folder / names[1], drawn, rows, first)
        done += rows
    return done


def write_tenrec(folder: Path, share: float = 1.0) -> int:
    """Write both files of Tenrec; returns the number of their rows, a share of the published."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {name: max(int(share * rows), 1) for name, rows in TENREC_ROWS.items()}
    columns = ["user_id", "item_id", "click", "follow", "like", "share", "video_category"]
    columns += ["watching_times", "gender", "age"]
    for name, rows in counts.items():
        with_history = name == "QK-video"
        head = columns + (list(HISTORY) if with_history else [])
        with (folder / FILES[name]).open("wb") as file:
            file.write((",".join(head) + "\n").encode())
            for size, tails in _tenrec_rows(rows, with_history):
                file.write("\n".join(tails[:size]).encode() + b"\n")
    return sum(counts.values())


def _write_joined(path: Path, drawn: _Products, rows: int, first: int) -> int:
    tails = []
    for page, (ids, numbers), label in zip(drawn.page, drawn.products, drawn.labels, strict=True):
        head_ids, head_numbers = drawn.pages[page]
        labels = [str(int(label > 0)), str(int(label > 1))]
        tails.append(",".join([*head_ids, *ids, *head_numbers, *numbers, *labels]))
    with path.open("wb") as file:
        file.write((",".join(["search_id", *CATEGORIES, *NUMBERS, *LABELS]) + "\n").encode())
        return _write_rows(file, drawn.page, tails, rows, first)


def _write_official(users: Path, items: Path, drawn: _Products, rows: int, first: int) -> int:
    """Columns in the order of the two files: see `coterie.msmt.data.aliexpress.Join`."""
    products = [
        _in_order(19, (34, 35, 36, 40, 41, 42), ids, numbers, str(label))
        for (ids, numbers), label in zip(drawn.products, drawn.labels, strict=True)
    ]
    pages = [",".join([*ids[:7], *numbers, *ids[7:]]) for ids, numbers in drawn.pages]
    with _packed(items) as file:
        last = _write_rows(file, drawn.page, products, rows, first)
    with _packed(users) as file:
        _write_rows(file, list(range(_PAGES)), pages, last - first, first)
    return last


def _in_order(one: int, others: tuple[int, ...], ids: list[str], numbers: list[str], y: str) -> str:
    places = dict(zip((one, *others), ids, strict=True))
    left = iter(numbers)
    return ",".join([*(places[n] if n in places else next(left) for n in range(2, 49)), y])


def _write_rows(file: IO[bytes], page: list[int], tails: list[str], rows: int, first: int) -> int:
    """Write rows, each behind its page's search id; returns the first search id not used."""
    while rows > 0:
        pages, lines = page[:rows], tails[:rows]
        text = "\n".join([f"{first + n},{t}" for n, t in zip(pages, lines, strict=True)])
        file.write(text.encode() + b"\n")
        rows, first = rows - len(lines), first + pages[-1] + 1
    return first


def _cells(
    rng: np.random.Generator, rows: int, sizes: tuple[int, ...], n_numbers: int
) -> list[tuple[list[str], list[str]]]:
    ids = rng.integers(0, sizes, (rows, len(sizes))).tolist()
    numbers = rng.random((rows, n_numbers))
    short = numbers.round(6)
    values = np.where(rng.random(numbers.shape) < _LONG, numbers, short)
    values[rng.random(numbers.shape) < _ZEROS] = 0.0
    return [
        (list(map(str, a)), list(map(str, b))) for a, b in zip(ids, values.tolist(), strict=True)
    ]


def _tenrec_rows(rows: int, with_history: bool) -> Iterator[tuple[int, list[str]]]:
    """Blocks of rows whose users count up as far as the published ones do."""
    users, items = (1_000_017, 3_753_436) if with_history else (34_240, 130_637)
    clicked = 0.24 if with_history else 0.70
    block, rng = _BLOCK, np.random.default_rng(0)
    kinds = np.array(["0", "1", "\\N"])
    columns: list[list[str]] = []
    click = (rng.random(block) < clicked).astype(int)
    like = click * (rng.random(block) < 0.012)
    rest = [click, 0 * click, like, 0 * click, kinds[rng.integers(0, 3, block)]]
    rest += [
        click * rng.integers(1, 9, block),
        rng.integers(0, 3, block),
        rng.integers(0, 8, block),
    ]
    if with_history:
        rest += list(rng.integers(1, items, (len(HISTORY), block)))
    columns = [list(map(str, column.tolist())) for column in rest]
    tails = [",".join(cells) for cells in zip(*columns, strict=True)]
    for start in range(0, rows, block):
        at = np.arange(start, start + block)
        user, item = (at * users // rows + 1).tolist(), (at * 7919 % items + 1).tolist()
        yield (
            min(block, rows - start),
            [f"{u},{i},{t}" for u, i, t in zip(user, item, tails, strict=True)],
        )


@contextmanager
def _packed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to be written: plain, or alone in a zip archive."""
    if path.suffix != ".zip":
        with path.open("wb") as file:
            yield file
        return
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{path.stem}.csv", "w", force_zip64=True) as inside,
    ):
        yield inside
