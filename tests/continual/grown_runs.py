"""A stream in files of its own parts, and runs that are trained on them in several ways."""

import csv
import random

import torch

from coterie.core.cli.main import main
from coterie.core.run.checkpoint import read_checkpoint
from coterie.core.run.metrics_file import read_metrics
from coterie.core.tensors import tree

SIZES = (360, 90, 90)
"""Rows that were there at first, and of each file that came later."""
FIRST_BLOCKS = (180, 90)
"""Rows of all blocks but the last that the first rows are cut into."""
FLAGS = ["--rounds", "2", "--model.dim", "4", "--top_k", "5", "--replay.top_n", "5"]
FLAGS += ["--data.min_interactions", "0", "--logger.wandb", "off", "--run.progress", "false"]
ALL_KEPT = ["--replay.use", "both", "--replay.leave_out_n", "4"]


def rows_in_time(seed=3):
    """Rows of users and items of whom more and more arrive; some pairs come again."""
    draw = random.Random(seed)
    rows = []
    for time in range(sum(SIZES)):
        known = 8 + time // 20, 12 + time // 18
        user, item = (draw.randrange(most) for most in known)
        # Names in no order of numbers, times with ties within a part.
        rows.append((f"u{user * 7 % 101}", f"i{item * 5 % 97}", 1000 + time - time % 3))
    return rows


def parts_of(rows):
    """The rows at first and of each later file."""
    found, start = [], 0
    for size in SIZES:
        found.append(rows[start : start + size])
        start += size
    return found


def write(path, rows, columns=("user", "item", "time")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def written(folder, rows=None):
    """Write the parts, shuffled, and all of them in one file: first, later ones, whole."""
    rows = rows_in_time() if rows is None else rows
    names = ("first.csv", "second.csv", "third.csv")
    parts = [
        write(folder / name, random.Random(1).sample(part, len(part)))
        for name, part in zip(names, parts_of(rows), strict=True)
    ]
    return *parts, write(folder / "whole.csv", rows)


def fractions(total):
    """Shares by which so many rows are cut into the same first blocks."""
    sizes = FIRST_BLOCKS if total == SIZES[0] else (*FIRST_BLOCKS, SIZES[0] - 270, *SIZES[1:-1])
    return "[" + ",".join(str((size + 0.5) / total) for size in sizes) + "]"


def train(out, name, *flags, data=None, total=SIZES[0]):
    """Train a new run, on one file; return its folder."""
    first = ["--data", str(data), "--data.fractions", fractions(total)]
    assert main(["train", "f3crec", *FLAGS, *first, *where(out, name), *flags]) == 0
    return out / "f3crec" / name


def grow(out, name, data, *flags):
    """Go on with a run, with the rows of a file; return the exit status."""
    return main(["train", "f3crec", "--resume", "--data", str(data), *where(out, name), *flags])


def where(out, name):
    return ["--run.out", str(out), "--run.name", name]


def left(run):
    """All that a run leaves but for its settings, its places and its times; by path."""
    saved = read_checkpoint(run / "checkpoints" / "last.ckpt")["federation"]
    kept = {key: value for key, value in saved.items() if key != "bound"}
    found = {
        path: value
        for path, value in tree.leaves({"run": kept, "data": saved["bound"]["data"]})
        if "seconds" not in path
    }
    return found | {f"metrics {n}": row for n, row in enumerate(numbers(run))}


def numbers(run):
    """Lines of metrics.csv but for times, with the columns in their order."""
    return [
        [(name, value) for name, value in line.items() if not name.startswith("cost/seconds")]
        for line in read_metrics(run)[1]
    ]


def differing(one, other):
    """Paths of what is not the same bits; NaN is itself."""

    def same(a, b):
        if torch.is_tensor(a):
            return torch.is_tensor(b) and a.dtype == b.dtype and torch.equal(known(a), known(b))
        return a == b or (a != a and b != b)

    both = one.keys() | other.keys()
    return sorted(path for path in both if not same(one.get(path), other.get(path)))


def known(values):
    return values.nan_to_num(-1.0) if values.is_floating_point() else values


def files_in(run):
    """Every file of a run, by name, with its bytes."""
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file()
    }
