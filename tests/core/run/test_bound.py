"""A run is bound to its data, ids, settings and constants."""

import csv
import gzip
import random
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.federation.federation import Earlier, Federation
from coterie.core.local_training.watching import constants_of
from coterie.core.methods import fedavg
from coterie.core.methods.registry import client_half, server_half
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.checkpoint import check_bound
from coterie.core.run.driver import FederatedRun
from coterie.core.run.serving import evaluate, recommend
from coterie.core.settings.configuration import configure
from coterie.core.tensors.saved import digest
from coterie.core.training.train import train

FLAGS = ["--preset", "smoke", "--rounds", "1", "--logger.wandb", "off", "--run.progress", "false"]


def rows_of(seed=0, users=40, items=30):
    drawn = random.Random(seed)
    # Few different times, so that ties are many.
    return [
        (f"u{u:03}", f"i{i:03}", drawn.randint(1, 5), drawn.randint(0, 40))
        for u in range(users)
        for i in sorted(drawn.sample(range(items), 12))
    ]


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("user", "item", "rating", "time"), *rows])
    return path


def settings(data, out, *more, paper="f3crec"):
    flags = ["--data", str(data), "--run.out", str(out), *FLAGS, *more]
    return configure(find_paper(paper), flags).settings


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bound")
    file = write(folder / "mine.csv", rows_of())
    run = train(find_paper("f3crec"), settings(file, folder / "runs", "--run.name", "one"))
    return file, run, evaluate(run), recommend(run, user="u003")


def again(trained, rows):
    write(trained[0], rows)
    return evaluate(trained[1]), recommend(trained[1], user="u003")


@pytest.mark.parametrize("order", ["reversed", "shuffled", "by item"])
def test_the_same_rows_in_another_order_are_the_same_data(trained, order):
    rows = rows_of()
    rows = {
        "reversed": rows[::-1],
        "shuffled": random.Random(5).sample(rows, len(rows)),
        "by item": sorted(rows, key=lambda row: row[1]),
    }[order]
    assert again(trained, rows) == trained[2:]


CHANGES = {
    "more rows, earlier": lambda rows: [("u900", f"i{n:03}", 5, -n) for n in range(12)] + rows,
    "a row less": lambda rows: rows[1:],
    "another time": lambda rows: [(*rows[0][:3], 99), *rows[1:]],
    "another rating": lambda rows: [(*rows[0][:2], 6 - rows[0][2] or 1, 3), *rows[1:]],
    "an item renamed": lambda rows: [(u, i.replace("i007", "i007b"), *r) for u, i, *r in rows],
    "a user renamed": lambda rows: [(u.replace("u003", "u003b"), *r) for u, *r in rows],
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_rows_are_told_in_one_line(trained, change):
    write(trained[0], CHANGES[change](rows_of()))
    for use in (evaluate, lambda run: recommend(run, user="u001")):
        with pytest.raises(UserError, match="the data have changed since") as error:
            use(trained[1])
        assert str(trained[1]) in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="the data have changed since"):
        train(
            find_paper("f3crec"),
            settings(
                trained[0], trained[1].parents[1], "--run.name", "one", "--run.resume", "true"
            ),
        )


def digest_of(path, *more):
    experiment = load(find_paper("f3crec").experiment)(settings(path, path.parent, *more))
    return FederatedRun(experiment.federation()).bound


def test_another_format_of_the_same_rows_is_the_same_data(tmp_path):
    plain = write(tmp_path / "a.csv", rows_of())
    frame = pd.read_csv(plain)
    frame.sample(frac=1, random_state=1).to_parquet(tmp_path / "b.parquet")
    with gzip.open(tmp_path / "c.csv.gz", "wb") as file:
        file.write(plain.read_bytes())
    found = [digest_of(tmp_path / name) for name in ("a.csv", "b.parquet", "c.csv.gz")]
    assert found[0]["data"] == found[1]["data"] == found[2]["data"]
    assert found[0]["ids"] == found[1]["ids"] == found[2]["ids"]
    assert digest_of(plain, "--seed", "9")["data"] != found[0]["data"]


def test_pplr_is_the_same_on_reordered_rows(tmp_path):
    paper = find_paper("pplr")
    file = write(tmp_path / "mine.csv", rows_of())
    more = ["--method", "fedmf", "--run.name", "one", "--data.clients", "2"]
    run = train(paper, settings(file, tmp_path / "runs", *more, paper="pplr"))
    before = evaluate(run)
    write(file, random.Random(3).sample(rows_of(), len(rows_of())))
    assert evaluate(run) == before


def test_where_a_file_was_is_kept(tmp_path, monkeypatch):
    write(tmp_path / "mine.csv", rows_of())
    monkeypatch.chdir(tmp_path)
    run = train(find_paper("f3crec"), settings("mine.csv", tmp_path / "runs", "--run.name", "one"))
    monkeypatch.chdir("/")
    evaluate(run)
    (tmp_path / "mine.csv").unlink()
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "mine.csv"))) as error:
        evaluate(run)
    assert str(run) in str(error.value)


def test_a_trainers_checkpoint_knows_its_settings_and_data(tmp_path):
    import lightning

    from coterie.core.training.module import FederatedModule

    file = write(tmp_path / "mine.csv", rows_of())

    def module(*more, data=file):
        experiment = load(find_paper("f3crec").experiment)(settings(data, tmp_path, *more))
        return FederatedModule(FederatedRun(experiment.federation()))

    trainer = lightning.Trainer(
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(first := module())
    saved: dict = {}
    first.on_save_checkpoint(saved)
    module().on_load_checkpoint(saved)
    for flags, what in ((["--seed", "9"], "'seed'"), (["--model.lr", "0.5"], "'model.lr'")):
        with pytest.raises(UserError, match=what):
            module(*flags).on_load_checkpoint(saved)
    other = write(tmp_path / "other.csv", rows_of(seed=1))
    with pytest.raises(UserError, match="the data have changed"):
        module(data=other).on_load_checkpoint(saved)
    del saved["federation"]["bound"]
    with pytest.raises(UserError, match="older"):
        module().on_load_checkpoint(saved)


class Frozen(nn.Module):
    """A trained head over something that nobody trains."""

    def __init__(self, kind="parameter"):
        super().__init__()
        self.head = nn.Linear(3, 2)
        drawn = torch.randn(4, 3)
        if kind == "parameter":
            self.below = nn.Parameter(drawn, requires_grad=False)
        elif kind == "buffer":
            self.register_buffer("below", drawn, persistent=False)
        elif kind == "numpy":
            self.below = drawn.numpy()
        elif kind == "number":
            self.below = float(drawn[0, 0])
        elif kind == "list":
            self.below = {"each": [drawn]}
        else:
            self.below = drawn

    def loss(self, batch):
        return self.head(batch["x"][:, :3]).square().mean()


KINDS = ["parameter", "buffer", "tensor", "numpy", "number", "list"]


def federation(server, client, kind):
    x = {"x": torch.ones(3, 4), "y": torch.zeros(3, dtype=torch.int64)}
    samples = SampleData.from_clients([x, x])
    return Federation(server, client, blocks=[SplitSamples.of(samples)])


@pytest.mark.parametrize("kind", KINDS)
def test_other_constants_are_told_before_the_first_round(kind):
    how = fedavg.FedAvgSettings(rounds=1, lr=0.1)
    server = fedavg.FedAvgServer(lambda: Frozen(kind), how)
    client = fedavg.FedAvgClient(Frozen(kind), how)
    with pytest.raises(UserError, match="'below'"):
        FederatedRun(federation(server, client, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_halves_of_one_build_have_the_same_constants(kind):
    how = fedavg.FedAvgSettings(rounds=1, lr=0.1)
    halves = [make("fedavg", lambda: Frozen(kind), how) for make in (server_half, client_half)]
    run = FederatedRun(federation(*halves, kind))
    saved = run.to_plain()
    other = FederatedRun(federation(*halves, kind))
    other.load_plain(saved)
    saved["bound"] = saved["bound"] | {"constants": "others"}
    with pytest.raises(UserError, match="constants of the module"):
        other.load_plain(saved)


def test_what_is_trained_or_kept_by_training_is_no_constant():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = constants_of(module)
    module(torch.randn(5, 2))
    with torch.no_grad():
        module[0].weight.zero_()
    assert constants_of(module) == before
    assert not any(name.endswith((".weight", ".running_mean")) for name in before)
    module.np = np.arange(3)
    assert constants_of(module) != before


def test_a_state_goes_on_with_more_blocks_only_if_its_own_are_the_same():
    """Both digests count: what clients hold, and what their numbers stand for."""
    held, more = torch.arange(3), torch.arange(4)
    grown = SimpleNamespace(blocks=[held, more], earlier=[Earlier(1, lambda: "names")])
    now = {"data": digest([held, more]), "ids": "more names", "constants": "none"}
    then = {"data": digest([held]), "ids": "names", "constants": "none"}

    def blocks(**changes):
        return check_bound({"bound": then | changes}, now, grown)

    assert blocks() == 1
    assert check_bound({"bound": now}, now, grown) == 2
    for changes in ({"data": digest([more])}, {"ids": "other names"}, {"ids": "more names"}):
        with pytest.raises(UserError, match="the data have changed"):
            blocks(**changes)
    with pytest.raises(UserError, match="other constants of the module"):
        blocks(constants="others")
