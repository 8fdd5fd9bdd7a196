"""Reading and cutting in a process each: by this library, and by a few lines of pandas.

Every function returns plain values, for `benchmarks.core.timing.in_a_process`: CPU seconds, how
much memory was added at most, the peak of the process, and a checksum of the result by which two
ways of doing it are compared.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks.core.machine import forget_peak, most_resident
from coterie.core.data.interactions.interactions import Interactions, k_core
from coterie.core.data.interactions.splits import split_block, temporal_blocks
from coterie.core.data.sources.own_file import read_own

CORE = 10
PER_USER = 60
_N_ITEMS = 20_000
_TIMES = (1_000_000_000, 1_600_000_000)

Found = dict[str, Any]
_T = TypeVar("_T")


def random_columns(rows: int) -> dict[str, np.ndarray]:
    """Draw users, items (some liked by many) and times of so many rows."""
    rng = np.random.default_rng(0)
    return {
        "user": rng.integers(0, max(1, rows // PER_USER), rows),
        "item": (min(_N_ITEMS, rows // 50 + 1) * rng.random(rows) ** 2).astype(np.int64),
        "time": rng.integers(*_TIMES, rows),
    }


def write_csv(path: Path, rows: int, text: bool) -> None:
    """Write a file of one's own, with ids that are text (``U000007``) or whole numbers."""
    import pyarrow as pa
    from pyarrow import csv

    columns: dict[str, Any] = dict(random_columns(rows))
    if text:
        for name, mark in (("user", "U"), ("item", "B")):
            words = pa.array([f"{mark}{n:06}" for n in range(int(columns[name].max()) + 1)])
            columns[name] = words.take(pa.array(columns[name]))
    csv.write_csv(pa.table(columns), path, csv.WriteOptions(quoting_style="none"))


def read_ours(path: str, small: str) -> Found:
    """Read a file; another, small one first, as the first use of a library takes its time."""
    torch.set_num_threads(1)
    read_own(Path(small))
    data, found = _measured(read_own, Path(path))
    return found | {"check": _check(data.user, data.item, data.time)}


def read_pandas(path: str, small: str) -> Found:
    """Read the same with pandas, and number users and items as every reader here does."""
    import pandas as pd

    def read(file: str) -> tuple[Any, ...]:
        table = pd.read_csv(file)
        return (*(pd.factorize(table[name])[0] for name in ("user", "item")), table["time"])

    read(small)
    columns, found = _measured(read, path)
    return found | {"check": _check(*columns)}


def cut_ours(rows: int) -> dict[str, Found]:
    """k-core, blocks, and the base block's split."""
    torch.set_num_threads(1)
    user, item, when = (torch.from_numpy(values) for values in random_columns(rows).values())
    users, items = ([str(n) for n in range(int(each.max()) + 1)] for each in (user, item))
    data = Interactions(user, item, when, None, users, items, None, None, "random rows")
    del user, item, when
    core, of_core = _measured(k_core, data, CORE)
    of_core["check"] = _check(core.user, core.item, core.time)
    del data
    stream, of_blocks = _measured(temporal_blocks, core)
    del core
    one = stream.interactions
    of_blocks["check"] = _check(one.user, one.item, one.time)
    found = {"k-core": of_core, "blocks": of_blocks}
    base = stream.blocks[0]
    split, of_split = _measured(split_block, stream, base, "chronological", 0, "file")
    of_split["check"] = _check(split.train.values, split.valid.values, split.test.values)
    found["split by time"] = of_split
    found["split at random"] = _measured(split_block, stream, base, "random", 0)[1]
    return found


def cut_pandas(rows: int) -> dict[str, Found]:
    """Do the same with pandas; what is drawn at random is left out."""
    import pandas as pd

    table = pd.DataFrame(random_columns(rows))

    def core() -> Any:
        kept, before = table, -1
        while len(kept) != before:
            before = len(kept)
            sizes = [kept.groupby(name)[name].transform("size") for name in ("user", "item")]
            kept = kept[(sizes[0] >= CORE) & (sizes[1] >= CORE)]
        return _numbered(kept)

    table, of_core = _measured(core)
    of_core["check"] = _check(*(table[name] for name in table))
    table, of_blocks = _measured(lambda: _numbered(table.sort_values("time", kind="stable")))
    of_blocks["check"] = _check(*(table[name] for name in table))

    def split() -> list[Any]:
        base = table.iloc[: int(0.6 * len(table))].drop_duplicates(["user", "item"])
        users = base.groupby("user")["item"]
        n, rank = users.transform("size"), users.cumcount()
        test = ((n + 9) // 10).where(n >= 3, 0)
        valid = ((n - test + 8) // 9).where(n >= 3, 0)
        parts = rank < n - test - valid, (rank >= n - test - valid) & (rank < n - test)
        masks = (*parts, rank >= n - test)
        return [base[mask].sort_values("user", kind="stable")["item"] for mask in masks]

    parts, of_split = _measured(split)
    of_split["check"] = _check(*parts)
    return {"k-core": of_core, "blocks": of_blocks, "split by time": of_split}


def _numbered(table: Any) -> Any:
    import pandas as pd

    return table.assign(**{name: pd.factorize(table[name])[0] for name in ("user", "item")})


def _measured(work: Callable[..., _T], *arguments: Any) -> tuple[_T, Found]:
    forget_peak()
    before, began = most_resident(), time.process_time()
    made = work(*arguments)
    seconds, peak = time.process_time() - began, most_resident()
    return made, {"seconds": seconds, "adds MB": (peak - before) / 1e6, "peak MB": peak / 1e6}


def _check(*columns: Any) -> int:
    """Checksum of whole numbers, whatever holds them."""
    found = 0
    for column in columns:
        found = zlib.crc32(np.ascontiguousarray(column, dtype=np.int64).data, found)
    return found
