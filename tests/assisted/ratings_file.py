"""A file of a few random ratings, and tables and runs of it that take tenths of a second."""

import torch

from coterie.assisted.paper import PAPER
from coterie.assisted.tables import make_table
from coterie.core.settings.configuration import configure

USERS, ITEMS = 24, 20
TINY = ["--rounds=2", "--train.epochs=1", "--train.batch_rows=20", "--model.hidden=4"]
TINY += ["--model.code=4", "--run.progress=false"]
ITEMS_IN_COMMON = ["--data.align=item", "--data.domains=uniform", "--data.count=3"]


def write_ratings(folder):
    generator = torch.Generator().manual_seed(0)
    known = torch.rand(USERS, ITEMS, generator=generator) < 0.6
    stars = torch.randint(1, 6, (USERS, ITEMS), generator=generator)
    lines = [f"{u},{i},{int(stars[u, i])}" for u, i in known.nonzero().tolist()]
    path = folder / "ratings.csv"
    path.write_text("\n".join(["user,item,rating", *lines]) + "\n", encoding="utf-8")
    return path


def words(file, out, *more):
    return [f"--data={file}", f"--run.out={out}", *TINY, *more]


def made(file, out, *more, seeds=(0, 1), **which):
    torch.set_num_threads(1)  # fixtures of a module come before that of a test
    configuration = configure(PAPER, words(file, out, *more))
    return make_table(configuration, **which, seeds=seeds, workers=0)


def row_of(report, method, metric, **where):
    (row,) = [
        row
        for row in report.rows
        if (row["method"], row["metric"]) == (method, metric)
        and all(row[name] == value for name, value in where.items())
    ]
    return row
