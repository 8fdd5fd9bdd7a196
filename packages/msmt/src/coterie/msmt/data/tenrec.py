"""Tenrec (Yuan et al., NeurIPS 2022): the videos of two feeds, QK and QB, are the scenarios.

``ctr_data_1M.csv`` has the videos shown to a million users of QK, with the first ten that each of
them clicked, which are no rows themselves; ``QB-video.csv`` those of QB, without a history. The
tasks are click and like. As in Tenrec's own code for several tasks, all clicked rows of QK are kept
and twice as many others are drawn (QB has fewer others than that, all its rows are kept), and rows
are cut at random. Each row's draws are by its number in the file and the key.

Inputs are 16 categories: user, item, category of the video, gender, age, ten items of the history,
and the scenario. Ids are numbered anew, those of all scenarios' training rows, each column by
itself; missing categories (backslash N) are one. How long a video was watched tells whether it
was clicked, and is no input; nor are follow and share. That the items of the history may have been
clicked after a row's video was shown, as the set is published, cannot be mended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID
from coterie.core.data.samples.arrow_rows import ArrowRows
from coterie.core.data.sources.arrow_samples import described
from coterie.core.data.sources.csv_blocks import Block, CsvForm, csv_blocks
from coterie.core.data.sources.first_look import check_different, look
from coterie.core.data.sources.sample_forms import Arrays, Field, Form, Vocabulary, survey
from coterie.core.errors import UserError, nearest
from coterie.core.registry.data_sets import find_file
from coterie.core.tensors.keys import Key, unit
from coterie.msmt.data.loaded import Loaded, is_big, load, parts_of, samples_of, unknown_note
from coterie.msmt.data.task import Schema, Task
from coterie.msmt.settings import ScenarioData

_BITS = 20  # of a hash, by which a table counts how many rows have it

Bools = npt.NDArray[np.bool_]


@dataclass
class Negatives:
    """Keeps all positives of a file, and as many negatives as are wanted.

    Those negatives are kept whose hashes are the smallest, so that the draw needs no second table;
    of the last few, with one hash, the first in the file.

    Attributes:
        column: the label, 0 or 1.
        key: of the draw.
        bound: hash below which negatives are kept.
        at_bound: how many negatives with that hash are kept.
        positives: number of positives in the file.
        negatives: number of negatives that are kept.
    """

    column: str
    key: Key
    bound: int
    at_bound: int
    positives: int
    negatives: int
    _taken: int = field(default=0, repr=False)
    _last: int | None = field(default=None, repr=False)

    @staticmethod
    def plan(path: Path, layout: CsvForm, column: str, ratio: int, key: Key) -> Negatives:
        """Read the labels of a file, and plan to keep ``ratio`` negatives a positive, if there are.

        Raises:
            UserError: as `coterie.core.data.sources.csv_blocks.csv_blocks`.
        """
        only = replace(layout, reads={column: layout.reads[column]})
        return _planned(csv_blocks(path, only), column, ratio, key)

    def keep(self, block: Block) -> Bools:
        """Which rows of a block are kept.

        The first time the blocks of the file must come in their order, from its start; from then on
        it is known which row with that hash is the last, and reading may begin anywhere.
        """
        kept = block.numbers(self.column) == 1
        hashes = _hashes(self.key, block)
        at = np.flatnonzero(~kept & (hashes == self.bound))
        kept |= hashes < self.bound
        kept[self._at_bound(block.first_row, at)] = True
        return kept

    def _at_bound(self, first_row: int, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those of the rows with the last hash that are kept."""
        if self._last is None:
            if first_row == 0:
                self._taken = 0
            at = at[: self.at_bound - self._taken]
            self._taken += len(at)
            if self._taken == self.at_bound:
                self._last = first_row + int(at[-1]) if len(at) else -1
            return at
        return at[first_row + at <= self._last]


def part_of(block: Block, key: Key, valid: float, test: float) -> npt.NDArray[np.int64]:
    """Draw the part of every row of a block, `TRAIN`, `VALID` or `TEST`.

    Args:
        block: of a file.
        key: of the draws.
        valid: share of the validation rows.
        test: share of the test rows.
    """
    drawn = unit(key.bits(_numbers(block)), torch.float64).numpy()
    return np.where(drawn < test, TEST, np.where(drawn < test + valid, VALID, TRAIN))


def _planned(blocks: Iterable[Block], column: str, ratio: int, key: Key) -> Negatives:
    counts, positives = np.zeros(1 << _BITS, np.int64), 0
    for block in blocks:
        negative = block.numbers(column) != 1
        positives += int((~negative).sum())
        counts += np.bincount(_hashes(key, block)[negative], minlength=1 << _BITS)
    below = np.cumsum(counts)
    wanted = min(ratio * positives, int(below[-1]))
    bound = int(np.searchsorted(below, wanted))
    at_bound = wanted - int(below[bound] - counts[bound])
    return Negatives(column, key, bound, at_bound, positives, wanted)


def _hashes(key: Key, block: Block) -> npt.NDArray[np.int64]:
    """Hashes of a block's rows, `_BITS` bits each."""
    bits = key.bits(_numbers(block)).numpy().view(np.uint64)
    return (bits >> np.uint64(64 - _BITS)).astype(np.int64)


def _numbers(block: Block) -> torch.Tensor:
    return torch.arange(block.first_row, block.first_row + len(block), device="cpu")


FILES = {"QK-video": "ctr_data_1M.csv", "QB-video": "QB-video.csv"}
"""File of each scenario."""

TASKS = ("click", "like")
HISTORY = tuple(f"hist_{number}" for number in range(1, 11))
CATEGORIES = ("user_id", "item_id", "video_category", "gender", "age", *HISTORY, "scenario")

_PARTS = {"train": TRAIN, "valid": VALID, "test": TEST}
_MAY_LACK = ("video_category", "gender", "age", *HISTORY)
_NEGATIVES = 2  # a positive, of QK


def read_tenrec(
    folder: Path,
    settings: ScenarioData,
    key: Key,
    dtype: torch.dtype = torch.float32,
    *,
    scenarios: Sequence[str] | None = None,
    streamed: bool | None = None,
    store: Path | None = None,
) -> Task:
    """Read the files of some feeds.

    Args:
        folder: has the files of `FILES`, gzipped or not.
        settings: the section ``data``: ``valid`` and ``test`` are shares of the rows; under the
            paper's protocol the validation rows are trained on, and the test rows take their place.
        key: of the draws.
        dtype: of the numbers, of which there are none.
        scenarios: names in `FILES`; None = those that are there.
        streamed: whether samples stay on disk, in Arrow files made once; None = where there is much
            text.
        store: folder of the Arrow files; None = beside the text.

    Raises:
        UserError: a file is missing, or a row is malformed, naming file and line.
    """
    if settings.samples is not None:
        raise UserError(
            "'data.samples' has no effect on Tenrec: its rows are too many to draw some"
        )
    files = _files(folder, scenarios)
    on_disk = is_big(list(files.values())) if streamed is None else streamed
    reading = _Reading(tuple(files), tuple(files.values()), settings, key)
    held, sizes, notes = reading.held((store or folder) if on_disk else None)
    samples = {
        part: samples_of([(each[part], [(0, each[part].count)]) for each in held], dtype)
        for part in held[0]
    }
    clients = parts_of(samples["train"], samples.get("valid", samples["test"]), samples["test"])
    return Task("tenrec", Schema(TASKS, tuple(files), sizes, 0), clients, notes=notes)


Held = list[dict[str, Loaded]]
"""Samples of each scenario, by part."""


@dataclass(frozen=True)
class _Reading:
    names: tuple[str, ...]
    files: tuple[Path, ...]
    settings: ScenarioData
    key: Key

    @property
    def parts(self) -> dict[str, int]:
        """The parts that rows are cut into."""
        paper = self.settings.paper_protocol
        return {name: part for name, part in _PARTS.items() if not (paper and name == "valid")}

    def held(self, store: Path | None) -> tuple[Held, tuple[int, ...], tuple[str, ...]]:
        """Samples, how many ids each column has, and notes; converted, or found converted."""
        if store is not None and (found := self._found(store)) is not None:
            return found
        self._look()
        plans = [self._plan(number) for number in range(len(self.files))]
        vocabulary = Vocabulary()
        for number, plan in enumerate(plans):
            form = self._form(number, plan, TRAIN)
            vocabulary = vocabulary.join(survey([self.files[number]], form))
        sizes = tuple(int(seen.sum()) + 1 for seen in vocabulary.seen["ids"])
        about = {**self._made_of(), "sizes": sizes, "notes": self._plan_notes(plans)}
        held: Held = []
        for number, plan in enumerate(plans):
            parts = {}
            for name, part in self.parts.items():
                target = store and self._target(store, number, name)
                form = self._form(number, plan, part)
                files = [self.files[number]]
                parts[name] = load(files, form, target, vocabulary=vocabulary, about=about)
            held.append(parts)
        return held, sizes, self._notes(held, about)

    def _found(self, store: Path) -> tuple[Held, tuple[int, ...], tuple[str, ...]] | None:
        """What was converted before by the same draws from the same files."""
        held: Held = []
        about: dict[str, Any] = {}
        for number in range(len(self.files)):
            parts = {}
            for name in self.parts:
                target = self._target(store, number, name)
                says = described(target) or {"about": {}}
                about = says["about"]
                if any(about.get(word) != value for word, value in self._made_of().items()):
                    return None
                unknown = tuple(says["unknown"]["ids"])
                rows = ArrowRows(target)
                parts[name] = Loaded(rows, says["rows"], Vocabulary(), unknown, says["left_out"])
            held.append(parts)
        return held, tuple(about["sizes"]), self._notes(held, about)

    def _look(self) -> None:
        """Look at the start and the end of the files, before one is read."""
        check_different(self.files)
        for number, path in enumerate(self.files):
            form = replace(self._form(number, None, TRAIN), keep=None)
            look(path, form.layout, form.values)

    def _made_of(self) -> dict[str, Any]:
        stats = [(path.name, path.stat()) for path in self.files]
        return {
            "format": 1,
            "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats],
            **self._drawn_by(),
        }

    def _drawn_by(self) -> dict[str, Any]:
        return {
            "scenarios": list(self.names),
            "key": int(self.key.state),
            "shares": [self.settings.valid, self.settings.test, self.settings.paper_protocol],
        }

    def _target(self, store: Path, number: int, part: str) -> Path:
        """Give a file that runs of other draws, which may be under way, do not write over."""
        drawn = hashlib.sha256(repr(self._drawn_by()).encode()).hexdigest()[:12]
        return store / self.names[number] / drawn / f"{part}.arrow"

    def _plan(self, number: int) -> Negatives | None:
        if self.names[number] != "QK-video":
            return None
        key = self.key.fold("negatives", number)
        return Negatives.plan(self.files[number], _layout(True), "click", _NEGATIVES, key)

    def _form(self, number: int, plan: Negatives | None, part: int) -> Form:
        reader = _Rows(number, self.names[number] == "QK-video")
        shares = 0.0 if self.settings.paper_protocol else self.settings.valid, self.settings.test
        key = self.key.fold("part", number)

        def keep(block: Block) -> npt.NDArray[np.bool_]:
            mine = part_of(block, key, *shares) == part
            return mine if plan is None else mine & plan.keep(block)

        fields = (
            Field("ids", CATEGORIES, "ids", "int32", dense=True),
            Field("labels", TASKS, "labels", "uint8"),
        )
        return Form(fields, _layout(reader.with_history), reader.values, keep)

    def _plan_notes(self, plans: list[Negatives | None]) -> list[str]:
        found = []
        for name, plan in zip(self.names, plans, strict=True):
            if plan is None:
                found.append(f"{name}: all rows are kept; the file has no history")
                continue
            what = f"{plan.positives:,} clicked rows, and {plan.negatives:,} others drawn"
            if plan.negatives < _NEGATIVES * plan.positives:
                what += f" (there are no {_NEGATIVES} a clicked one)"
            found.append(f"{name}: {what}")
        return found

    def _notes(self, held: Held, about: dict[str, Any]) -> tuple[str, ...]:
        found = list(about["notes"])
        for name, parts in zip(self.names, held, strict=True):
            for part, loaded in parts.items():
                found += unknown_note(f"{name} {part}", CATEGORIES, loaded.unknown)
        absent = [name for name in FILES if name not in self.names]
        return (*found, *(f"{name} is not there: one scenario only" for name in absent))


@dataclass(frozen=True)
class _Rows:
    """Makes samples of the rows of a scenario."""

    scenario: int
    with_history: bool

    def values(self, block: Block) -> Arrays:
        """Fields of the samples; ids of what may be missing are one more, 0 is for missing."""
        columns = [block.numbers("user_id"), block.numbers("item_id")]
        columns += [_category(block, name) for name in _MAY_LACK[:3]]
        if self.with_history:
            columns += [_category(block, name) for name in HISTORY]
        else:
            columns += [np.zeros(len(block), np.int64)] * len(HISTORY)
        columns.append(np.full(len(block), self.scenario))
        labels = np.stack([block.numbers(name) for name in TASKS], axis=1)
        return {"ids": np.stack(columns, axis=1), "labels": labels}


def _category(block: Block, name: str) -> npt.NDArray[np.int64]:
    values = block.table[name].fill_null(-1.0).to_numpy()
    with np.errstate(invalid="ignore"):  # such as 1e30, which is told apart below
        whole: npt.NDArray[np.int64] = values.astype(np.int64)
    bad = (whole != values) | (whole < -1)
    if bad.any():
        row = int(bad.argmax())
        raise block.fault(row, f"column '{name}' is {values[row]:g}, not an id")
    return whole + 1


def _layout(with_history: bool) -> CsvForm:
    # Users without a click have no history, whose columns pandas then writes as 12.0 or nothing.
    may_lack = _MAY_LACK if with_history else _MAY_LACK[:3]
    whole = {name: pa.int64() for name in ("user_id", "item_id", *TASKS)}
    reads = whole | {name: pa.float64() for name in may_lack}
    what = f"this is {FILES['QK-video']} under the name of {FILES['QB-video']}"
    return CsvForm(
        reads,
        nulls=("\\N", "", "nan"),
        may_be_null=frozenset(may_lack),
        strangers={} if with_history else {HISTORY[0]: what},
    )


def _files(folder: Path, wanted: Sequence[str] | None) -> dict[str, Path]:
    found = {}
    for name, file in FILES.items():
        path = find_file(folder, file)
        if path is not None:
            found[name] = path
    for name in wanted or ():
        if name not in FILES:
            raise UserError(f"'{name}' is no scenario of Tenrec: {nearest(name, FILES)}")
        if name not in found:
            raise UserError(f"{folder} has no {FILES[name]} (nor .gz): put it there")
    if not found:
        raise UserError(f"{folder} has none of {', '.join(FILES.values())}: put them there")
    return {name: found[name] for name in wanted or found}
