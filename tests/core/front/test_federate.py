"""A LightningModule through `federate` is FedAvg as a plain loop in torch has it."""

import lightning
import pandas as pd
import pytest
import torch
from tests.core.front.lit_modules import (
    SIZES,
    Conv,
    FromColumns,
    FromDict,
    Lit,
    Recurrent,
    datasets,
    dicts,
    samples,
)
from tests.core.front.plain_loop import QUIET, plain_fedavg, same
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from coterie.core.data.samples.samples import MiniBatches
from coterie.core.front import partition
from coterie.core.front.federate import Federated, federate
from coterie.core.tensors.keys import Key

LENGTHS = list(SIZES.values())


def fitted(*arguments, **options):
    """A federation that a Trainer has run to its end."""
    made = federate(*arguments, rounds=3, epochs=2, **options)
    lightning.Trainer(max_epochs=-1, **QUIET).fit(made)
    assert made.run.finished
    assert made.run.round == 3
    return made


def whole(client, _):
    """All samples of a client, twice: two epochs."""
    return [samples(list(SIZES)[client])] * 2


def plain(kind, **options):
    return plain_fedavg(kind(), whole, LENGTHS, 3, kind.lr, **options)


class Named(Dataset):
    """Samples that are dicts of numpy's and torch's."""

    def __init__(self, name):
        self.x, self.y = samples(name)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, place):
        return {"x": self.x[place].numpy(), "y": int(self.y[place])}


def frames():
    found = []
    for name in SIZES:
        x, y = samples(name)
        columns = {letter: x[:, n].double().numpy() for n, letter in enumerate("abc")}
        found.append(pd.DataFrame({**columns, "y": y.numpy()}))
    return found


@pytest.mark.parametrize("kind", [Lit, Conv, Recurrent], ids=["mlp", "normed cnn", "lstm"])
def test_a_module_is_trained_as_by_a_plain_loop(kind):
    made = fitted(kind(), datasets())
    model = made.server_model()
    assert type(model) is kind
    right, own = plain(kind)
    same(model, right)
    trained = made.client_model(1)
    for name, value in trained.state_dict().items():  # its running statistics among them
        torch.testing.assert_close(value, own[1].state_dict()[name], rtol=0, atol=1e-6)


FORMS = {
    "lists of tuples": lambda: (Lit(), [list(zip(*samples(n), strict=True)) for n in SIZES]),
    "subsets": lambda: (
        Lit(),
        [
            Subset(TensorDataset(*both), range(first, first + size))
            for both in [[torch.cat(part) for part in zip(*map(samples, SIZES), strict=True)]]
            for first, size in zip((0, 7, 19), LENGTHS, strict=True)
        ],
    ),
    "other datasets": lambda: (Lit(), [ConcatDataset([one]) for one in datasets()]),
    "datasets of dicts": lambda: (FromDict(), [Named(name) for name in SIZES]),
    "dicts": lambda: (FromDict(), dicts()),
    "frames": lambda: (FromColumns(), frames()),
    "a mapping": lambda: (Lit(), dict(zip(SIZES, datasets(), strict=True))),
}


@pytest.mark.parametrize("form", FORMS)
def test_data_come_in_any_form(form):
    made = fitted(*FORMS[form]())
    same(made.server_model(), plain(Lit)[0])
    assert made.client_ids == (tuple(SIZES) if form == "a mapping" else (0, 1, 2))


def shuffled():
    """Whose sample is where, in one data set of all."""
    owners = [name for name, size in SIZES.items() for _ in range(size)]
    return owners, torch.randperm(len(owners), generator=torch.Generator().manual_seed(3))


def together():
    parts = zip(*(samples(name) for name in SIZES), strict=True)
    return tuple(torch.cat(part) for part in parts)


@pytest.mark.parametrize("form", ["frame", "dict", "text", "items"])
def test_a_column_says_who_holds_what(form):
    owners, order = shuffled()
    names = [owners[place] for place in order]
    numbers = torch.tensor([sorted(SIZES).index(name) for name in names])
    x, y = (part[order] for part in together())
    expected, module = (0, 1, 2), FromDict()
    if form == "frame":
        module, expected = FromColumns(), tuple(sorted(SIZES))
        data = pd.concat(frames(), ignore_index=True).iloc[order.numpy()].assign(user=names)
    elif form == "dict":
        data = {"x": x, "user": numbers, "y": y}
    elif form == "text":
        data, expected = {"x": x, "user": names, "y": y}, tuple(sorted(SIZES))
    else:
        rows = zip(x, numbers, y, strict=True)
        data = [{"x": a, "user": int(b), "y": c} for a, b, c in rows]
        data = ConcatDataset([data])
    made = fitted(module, data, client_column="user")
    assert made.client_ids == expected
    same(made.server_model(), plain(Lit)[0])


@pytest.mark.parametrize(
    "how",
    [
        partition.dirichlet(alpha=0.5, n_clients=3, min_size=2),
        partition.uniform(4),
        partition.shards(3),
        partition.quantity_skew(0.5, 0.4, 3),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_partition_deals_one_data_set_out(how):
    x, y = together()
    made = fitted(Lit(), TensorDataset(x, y), partition=how, seed=4)
    held = made.run.federation.blocks[0].train
    parts = [held.take(torch.tensor([c])).samples for c in range(len(held))]
    rows = torch.cat([torch.cat([one["0"], one["1"][:, None]], 1) for one in parts])
    everything = torch.cat([x, y[:, None]], 1)
    assert sorted(rows.tolist()) == sorted(everything.tolist())
    batches = [[(one["0"], one["1"])] * 2 for one in parts]
    right, _ = plain_fedavg(Lit(), lambda c, _: batches[c], held.lengths.tolist(), 3, Lit.lr)
    same(made.server_model(), right)


def test_labels_are_found_or_named():
    x, y = together()
    made = [
        federate(module, data, partition=how).run.federation.blocks[0].train.offsets.tolist()
        for module, data, how in (
            (Lit(), TensorDataset(x, y), partition.shards(3)),
            (FromDict(), {"y": y, "x": x}, partition.shards(3)),
            (FromDict(), {"y": y, "x": x}, partition.shards(3, labels="y")),
        )
    ]
    assert made[0] == made[1] == made[2]


def test_mini_batches_come_in_the_order_of_the_key():
    made = fitted(Lit(), datasets(), batch_size=4, seed=11)
    data = made.run.federation.blocks[0].train
    own = Key.from_seed(11).fold("clients")

    def batches(client, number):
        one = data.take(torch.tensor([client]))
        key = own.fold(one.ids).fold("update", 0, number, 0)
        each = MiniBatches(one, 2, 4, key)
        for step in range(int(each.steps[0])):
            batch = each(step, torch.tensor([0]))
            yield batch["0"][0], batch["1"][0]

    same(made.server_model(), plain_fedavg(Lit(), batches, LENGTHS, 3, Lit.lr)[0])


class Decayed(Lit):
    def configure_optimizers(self):
        return {"optimizer": torch.optim.SGD(self.parameters(), lr=0.2, weight_decay=0.3)}


class ByAdam(Lit):
    def configure_optimizers(self):
        return [torch.optim.Adam(self.parameters(), lr=0.02, weight_decay=0.1)], []


def test_the_optimizer_is_that_of_the_module():
    made = fitted(Decayed(), datasets())
    same(made.server_model(), plain_fedavg(Decayed(), whole, LENGTHS, 3, 0.2, weight_decay=0.3)[0])
    made = fitted(ByAdam(), datasets(), keep_moments=False)
    adam = {"optimizer": torch.optim.Adam, "weight_decay": 0.1}
    same(made.server_model(), plain_fedavg(ByAdam(), whole, LENGTHS, 3, 0.02, **adam)[0])


def test_a_rate_that_is_said_wins():
    made = fitted(Decayed(), datasets(), lr=0.05)
    right, _ = plain_fedavg(Decayed(), whole, LENGTHS, 3, 0.05, weight_decay=0.3)
    same(made.server_model(), right)


class Plain(nn.Module):
    """No Lightning: a loss of a batch."""

    def __init__(self):
        super().__init__()
        self.inner = Lit().layers

    def loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.inner(x), y)

    def correct(self, batch):
        return self.inner(batch[0]).argmax(-1) == batch[1]


def test_a_plain_module_takes_tuples_too():
    made = fitted(Plain(), datasets(), lr=Lit.lr, test=datasets(seed=1))
    right, _ = plain(Lit)
    right = {name.replace("layers", "inner"): value for name, value in right.items()}
    same(made.server_model(), right)
    model, hits = made.server_model(), []
    for x, y in (samples(name, seed=1) for name in SIZES):
        hits.append(float((model.inner(x).argmax(-1) == y).double().mean()))
    assert made.run.results["test/global_accuracy"] == pytest.approx(sum(hits) / 3)


def test_the_module_that_was_given_stays_as_it_was():
    module = Lit()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    made = fitted(module, datasets())
    assert isinstance(made, Federated)
    assert type(module) is Lit
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    model = made.server_model()
    with torch.no_grad():
        model.layers[0].weight.zero_()
    assert not torch.equal(made.server_model().layers[0].weight, model.layers[0].weight)
    weights = made.run.server_state.weights
    assert all(torch.equal(weights[n], p) for n, p in made.server_model().named_parameters())


def test_a_trainer_ends_the_run_earlier_than_its_rounds_and_not_later():
    made = federate(Lit(), datasets(), rounds=3)
    lightning.Trainer(max_epochs=2, **QUIET).fit(made)
    assert (made.run.round, made.run.finished) == (2, False)
    made = federate(Lit(), datasets(), rounds=3)
    lightning.Trainer(max_epochs=9, **QUIET).fit(made)
    assert (made.run.round, made.run.finished) == (3, True)


class LateParts(Lit):
    def setup(self, stage):
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * self.layers(x)


def test_parts_that_setup_makes_are_trained():
    model = fitted(LateParts(), datasets()).server_model()
    assert type(model) is LateParts
    assert abs(float(model.scale.detach()) - 1) > 1e-3


def test_a_data_set_of_hugging_face():
    library = pytest.importorskip("datasets")
    made = [
        library.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()})
        for x, y in map(samples, SIZES)
    ]
    same(fitted(FromDict(), made).server_model(), plain(Lit)[0])


class Table:
    """What is asked of a `datasets.Dataset`: text where it is, tensors where they can be."""

    def __init__(self, columns, torch_like=False):
        self.columns, self.torch_like = columns, torch_like
        self.column_names = list(columns)

    def with_format(self, name):
        assert name == "torch"
        return Table(self.columns, True)

    def remove_columns(self, names):
        return Table({n: v for n, v in self.columns.items() if n not in names})

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, what):
        if isinstance(what, str):
            return self.columns[what]
        numbers = not isinstance(self.columns["y"][0], str)
        assert what == slice(None)
        assert self.torch_like
        return {
            n: torch.tensor(v) if numbers and n != "user" else v for n, v in self.columns.items()
        }


def test_what_is_like_a_data_set_of_hugging_face():
    tables = [Table({"x": x.tolist(), "y": y.tolist()}) for x, y in map(samples, SIZES)]
    same(fitted(FromDict(), tables).server_model(), plain(Lit)[0])
    owners = [name for name, size in SIZES.items() for _ in range(size)]
    x, y = (part.tolist() for part in together())
    made = fitted(FromDict(), Table({"user": owners, "x": x, "y": y}), client_column="user")
    assert made.client_ids == tuple(sorted(SIZES))
    same(made.server_model(), plain(Lit)[0])


def padded(items):
    """Rows of unequal lengths, filled up by zeros."""
    longest = max(len(x) for x, _ in items)
    rows = torch.zeros(len(items), longest)
    for row, (x, _) in zip(rows, items, strict=True):
        row[: len(x)] = torch.as_tensor(x)
    return rows, torch.tensor([y for _, y in items])


class Pooled(Lit):
    """Takes rows of any length: zeros count for nothing."""

    def forward(self, x):
        return self.layers(
            torch.stack([x.sum(1), x.square().sum(1), x.cos().sum(1) - (x == 0).sum(1)], 1)
        )


def test_ragged_samples_are_padded_by_the_user_once():
    clients, batches = [], []
    for size in (2, 4, 3):
        x, y = samples("bob", seed=size)
        ragged = [
            (row[: 1 + place % size].tolist(), int(one))
            for place, (row, one) in enumerate(zip(x, y, strict=True))
        ]
        clients.append(ragged)
        batches.append([padded(ragged)] * 2)
    made = fitted(Pooled(), clients, collate_fn=padded)
    right, _ = plain_fedavg(Pooled(), lambda c, _: batches[c], [12] * 3, 3, Lit.lr)
    same(made.server_model(), right)


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_may_be_on_either_side(side):
    def pad(items):
        longest = max(len(x) for x, _ in items)
        zeros = [torch.zeros(longest - len(x)) for x, _ in items]
        rows = [(torch.tensor(x), z) for (x, _), z in zip(items, zeros, strict=True)]
        rows = [torch.cat(pair if side == "right" else pair[::-1]) for pair in rows]
        return torch.stack(rows), torch.tensor([y for _, y in items])

    clients = [[([1.0, 2.0], 0), ([3.0], 1)], [([1.0, 2.0, 3.0], 2)]]
    made = federate(Pooled(), clients, collate_fn=pad)
    assert made.run.federation.blocks[0].train.samples["0"].shape == (3, 3)


class InMode(Lit):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1.0 if self.training else 0.0)


def test_a_module_that_was_in_evaluation_mode_is_trained():
    same(fitted(InMode().eval(), datasets()).server_model(), plain(Lit)[0])


class Penalised(Lit):
    def training_step(self, batch, batch_idx):
        x = batch[0].clone().requires_grad_()
        value = self.loss(self(x), batch[1])
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        return value + slope.square().sum()

    def validation_step(self, batch, batch_idx):
        self.log("correct", float(len(batch[0])))


def test_a_loss_that_takes_gradients_is_measured():
    made = federate(Penalised(), datasets(), rounds=1, valid=0.3)
    made.run.advance()
    assert made.run.history[0]["eval/global_loss"] > 0
