"""What cannot be federated as it is written is refused in one line that names the remedy."""

import re

import lightning
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from tests.core.front.lit_modules import (
    SIZES,
    FromColumns,
    FromDict,
    Lit,
    datasets,
    dicts,
    samples,
)
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from coterie.core.errors import UserError
from coterie.core.front import partition
from coterie.core.front.federate import federate
from coterie.core.methods.fedavg import FedAvgSettings
from coterie.core.methods.scaffold import ScaffoldSettings
from coterie.core.training.trainer import fit


def refused(words, *arguments, run=False, **options):
    """Refused in one line that has these words."""

    def attempt():
        made = federate(*arguments, **options)
        if run:
            fit(made.run)

    with pytest.raises(UserError) as caught:
        attempt()
    text = str(caught.value)
    assert re.search(words, text), text
    assert "\n" not in text


def configured(optimizer):
    class Configured(Lit):
        def configure_optimizers(self):
            return optimizer(self)

    return Configured()


def sgd(module, **options):
    return torch.optim.SGD(module.parameters(), lr=0.1, **options)


def adam(module, **options):
    return torch.optim.Adam(module.parameters(), **options)


OPTIMIZERS = {
    "SGD with momentum=0.9": lambda m: sgd(m, momentum=0.9),
    "SGD with nesterov|momentum": lambda m: sgd(m, momentum=0.9, nesterov=True),
    "SGD with maximize=True": lambda m: sgd(m, maximize=True),
    "Adam with amsgrad=True": lambda m: adam(m, amsgrad=True),
    r"Adam with betas=\(0.5, 0.9\)": lambda m: adam(m, betas=(0.5, 0.9)),
    "gives AdamW": lambda m: torch.optim.AdamW(m.parameters()),
    "gives LBFGS": lambda m: torch.optim.LBFGS(m.parameters()),
    "gives 2 optimizers": lambda m: [sgd(m), sgd(m)],
    "a learning rate scheduler": lambda m: (
        [one := sgd(m)],
        [torch.optim.lr_scheduler.StepLR(one, 1)],
    ),
    "a learning rate scheduler ": lambda m: {
        "optimizer": (one := sgd(m)),
        "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(one, 1)},
    },
    "gives no optimizer": lambda m: None,
    "gives a str": lambda m: "sgd",
    "leaves 'layers.2.weight' out": lambda m: torch.optim.SGD(m.layers[0].parameters(), lr=0.1),
    "groups of parameters with lr": lambda m: torch.optim.SGD(
        [{"params": m.layers[0].parameters()}, {"params": m.layers[2].parameters(), "lr": 1.0}],
        lr=0.1,
    ),
    "uses self.trainer": lambda m: sgd(m) if m.trainer.max_epochs else None,
}


@pytest.mark.parametrize("words", OPTIMIZERS)
def test_optimizers(words):
    refused(words.strip(), configured(OPTIMIZERS[words]), datasets())


def test_settings_and_optimizers_that_differ():
    refused(
        "optimizer is adam by the settings and sgd by conf", Lit(), datasets(), optimizer="adam"
    )
    refused("weight_decay is 0.5 by the settings and 0", Lit(), datasets(), weight_decay=0.5)
    settings = FedAvgSettings(lr=0.3)
    refused("lr is 0.3 by the settings and 0.1.*or give lr=", Lit(), datasets(), settings)
    assert federate(Lit(), datasets(), settings, lr=0.3).run.federation.client.settings.lr == 0.3
    by_adam = configured(adam)
    refused("SCAFFOLD is defined for gradient descent", by_adam, datasets(), "scaffold")
    fast = configured(lambda m: torch.optim.SGD(m.parameters(), lr=0.5))
    refused("personal_lr is the lr of configure_optimizers", fast, datasets(), "pfedme")


STEPS = {
    r"uses self.print\(\)": lambda self, batch, batch_idx: self.print("hello"),
    "uses self.logger.experiment": lambda self, batch, batch_idx: self.logger.experiment,
    "uses self.logger.log_metrics": lambda self, batch, batch_idx: self.logger.log_metrics({}),
    r"fails on .*'missing'\): it was given '0' float32 \(8, 3\), '1'": (
        lambda self, batch, batch_idx: None.missing
    ),
    "takes 'number', which no client has": lambda self, batch, *, number: None,
    "gives None": lambda self, batch, batch_idx: None,
    "gives a dict of scores: add its 'loss'": lambda self, batch, batch_idx: {"scores": 1},
    r"a tensor of shape \(5,\)|a tensor of shape \(8,\)": lambda self, batch, batch_idx: (
        batch[1] * 1.0
    ),
    "gives a float": lambda self, batch, batch_idx: 0.5,
    "uses batch_idx": lambda self, batch, batch_idx: (
        Lit.training_step(self, batch, 0) * (batch_idx + 1)
    ),
    "uses batch_idx ": lambda self, batch, batch_idx: (
        Lit.training_step(self, batch, 0) if batch_idx == 0 else None
    ),
    "takes 'optimizer_idx'": lambda self, batch, batch_idx, optimizer_idx: None,
    "uses self.trainer": lambda self, batch, batch_idx: self.trainer.max_epochs,
    "uses self.current_epoch": lambda self, batch, batch_idx: self.current_epoch,
    "uses self.global_step": lambda self, batch, batch_idx: self.global_step,
    r"uses self.optimizers\(\)": lambda self, batch, batch_idx: self.optimizers(),
    "got a str": lambda self, batch, batch_idx: (
        self.log("x", "y") or Lit.training_step(self, batch, 0)
    ),
    r"got a tensor of shape \(": lambda self, batch, batch_idx: (
        self.log("x", batch[0]) or Lit.training_step(self, batch, 0)
    ),
    "only means are taken": lambda self, batch, batch_idx: (
        self.log("x", 1.0, reduce_fx="max") or Lit.training_step(self, batch, 0)
    ),
}


@pytest.mark.parametrize("words", STEPS)
def test_training_steps(words):
    kind = type("Stepping", (Lit,), {"training_step": STEPS[words]})
    refused(words.strip(), kind(), datasets())


HOOKS = (
    "on_train_epoch_end",
    "on_before_optimizer_step",
    "on_validation_epoch_end",
    "on_after_backward",
    "on_after_batch_transfer",
    "on_fit_start",
    "optimizer_step",
    "configure_gradient_clipping",
    "configure_callbacks",
    "lr_scheduler_step",
    "on_save_checkpoint",
    "teardown",
    "training_epoch_end",
)


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_that_nobody_calls(hook):
    kind = type("Hooked", (Lit,), {hook: lambda self, *_: None})
    refused(f"Hooked has {hook}, which nobody calls in a client", kind(), datasets())
    module = Lit()
    setattr(module, hook, lambda *_: None)  # Lightning would call it there as well
    refused(f"Lit has {hook}, which nobody calls in a client", module, datasets())


def test_manual_optimization_and_missing_steps():
    module = Lit()
    module.automatic_optimization = False
    refused("automatic_optimization = False", module, datasets())
    bare = type("Bare", (lightning.LightningModule,), {})
    refused("Bare has no training_step", bare(), datasets())


def test_steps_that_log_now_this_and_now_that():
    def step(self, batch, batch_idx):
        if float(batch[0].sum()) > self.above:
            self.log("high", 1.0)
        return Lit.training_step(self, batch, batch_idx)

    kind = type("Moody", (Lit,), {"training_step": step, "above": 25.0})
    refused("Moody logs 'high' in some batches only|answer", kind(), datasets(count=60), run=True)


def test_steps_that_would_train_a_layer_of_the_original():
    class Closed(Lit):
        def __init__(self):
            super().__init__()
            layers = self.layers
            self.scored = lambda x: layers(x)

        def training_step(self, batch, batch_idx):
            return self.loss(self.scored(batch[0]), batch[1])

    refused(
        "Closed reads 'layers.[02].(weight|bias)' by something that copies", Closed(), datasets()
    )

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, own = nn.Linear(3, 4), nn.Linear(3, 4)
            self.other, self.run = own, lambda x: own(x)

        def loss(self, batch):
            scores = self.layer(batch[0]) + self.run(batch[0])
            return nn.functional.cross_entropy(scores, batch[1])

    refused("Plain reads 'other.(weight|bias)'", Plain(), datasets())


def test_what_a_step_cannot_take_is_told_with_what_it_was_given():
    x, y = samples("bob")
    words = r"training_step of Lit fails .*Float.*: it was given '0' float32 \(8, 3\), '1' float32"
    refused(words, Lit(), [TensorDataset(x, y.float())])
    refused(r"\(IndexError: Target 9 is out of bounds.\)", Lit(), [TensorDataset(x, y * 0 + 9)])
    held = [TensorDataset(x.double(), y)]
    refused("test_step|dtype|float64", Lit(), [TensorDataset(x, y)], test=held)


def test_steps_may_take_all_that_there_is():
    kind = type(
        "Rest", (Lit,), {"training_step": lambda self, *given: Lit.training_step(self, *given)}
    )
    guarded = type(
        "Guarded",
        (Lit,),
        {
            "training_step": lambda self, batch, batch_idx: (
                (self.logger is not None and self.logger.log_metrics({}))
                or Lit.training_step(self, batch, batch_idx)
            )
        },
    )
    for one in (kind, guarded):
        made = federate(one(), datasets(), rounds=1)
        fit(made.run)
        assert made.run.finished


def test_numbers_of_numpy_are_numbers():
    given = {"rounds": np.int64(2), "lr": np.float32(0.5), "seed": np.int32(3)}
    settings = federate(Lit(), datasets(), test=np.float32(0.25), **given).run.federation
    assert settings.client.settings.rounds == 2
    assert settings.client.settings.lr == 0.5


def test_modules():
    refused("not 3: make one", 3, datasets())
    refused(r"make one, as Lit\(\)", Lit, datasets())
    refused(r"Linear has no method loss\(batch\)", nn.Linear(2, 1), datasets())

    class Layered(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.loss = nn.Linear(3, 1), nn.MSELoss()

    refused("Layered.loss is a layer", Layered(), datasets())
    refused("'0' is a LazyLinear without a shape", nn.Sequential(nn.LazyLinear(2)), datasets())


def test_methods_and_settings():
    refused("method 'scafold' is unknown: did you mean 'scaffold'", Lit(), datasets(), "scafold")
    refused("is the class ScaffoldSettings: make settings", Lit(), datasets(), ScaffoldSettings)
    refused("method is a int", Lit(), datasets(), 7)
    refused(
        "setting 'epoch' of fedavg is unknown: did you mean 'epochs'", Lit(), datasets(), epoch=2
    )
    refused("'lr_g' of fedavg is unknown", Lit(), datasets(), lr_g=2.0)
    refused("rounds='3' is a str: give int", Lit(), datasets(), rounds="3")
    refused("rounds=2.5 is a float", Lit(), datasets(), rounds=2.5)
    refused(
        "weighting='equals' is unknown: did you mean 'equal'", Lit(), datasets(), weighting="equals"
    )
    refused("rounds", Lit(), datasets(), rounds=0)
    refused("fraction must be in", Lit(), datasets(), fraction=2.0)
    refused("seed=-1", Lit(), datasets(), seed=-1)
    refused("workers=0", Lit(), datasets(), workers=0)


def test_clients():
    refused("there are no clients", Lit(), [])
    refused("there are no clients", Lit(), {})
    refused("no client has a sample", Lit(), [[], []])
    refused("no client has a sample", Lit(), datasets(count=0))
    refused("clients is one data set: say who holds what", Lit(), datasets()[0])
    refused("clients is one data set: say who holds what", FromDict(), dicts()[0])
    refused(
        "client 1 is a dict of tensors, and client 0 a Dataset", Lit(), [datasets()[0], dicts()[1]]
    )
    loader = DataLoader(datasets()[0])
    refused("client 0 is a DataLoader.*give its .dataset", Lit(), [loader])
    refused("client 0 is a str", Lit(), ["data.csv"])
    refused("clients is a str", Lit(), "data.csv")
    refused("client 0 is a Tensor", Lit(), [torch.ones(3)])
    refused("client 0 is a NoneType", Lit(), [None])
    refused("client 0 is a tuple of tensors.*give TensorDataset", Lit(), [samples("ann")])
    refused("client 0 is a tuple of tensors", Lit(), [(torch.ones(4, 1), torch.ones(4, 1))])
    refused(r"client 0 is a Table: give its .to_pandas\(\)", FromDict(), [pa.table({"x": [1]})])
    refused("is a TensorDataset|is a type", Lit(), [TensorDataset])
    mixed = type("DatasetDict", (dict,), {"with_format": 1, "column_names": 2})
    refused("clients is a DatasetDict: give one of its splits", Lit(), mixed(train=1))

    class Endless(IterableDataset):
        def __iter__(self):
            yield from samples("ann")

    refused("is an IterableDataset", Lit(), [Endless()])


def test_clients_that_are_not_alike():
    x, y = samples("ann")
    other = [dicts()[0], {"x": x}]
    refused("client 1 has the fields x, the first one has x, y", FromDict(), other)
    refused("client 1 has the fields y, z", FromDict(), [dicts()[0], {"z": x, "y": y}])
    wide = TensorDataset(torch.ones(4, 5), torch.zeros(4).long())
    refused(r"'0' of client 1 is float32 of shape \(5,\) a sample", Lit(), [datasets()[0], wide])
    double = TensorDataset(x.double(), y)
    refused(r"'0' of client 1 is float64 of shape \(3,\)", Lit(), [datasets()[0], double])
    refused(
        "client 0 has rows of unequal numbers: 7 of 'x', 3 of 'y'",
        FromDict(),
        [{"x": x, "y": y[:3]}],
    )
    refused(
        "client 1 has its samples in another form|fields",
        Lit(),
        [list(zip(x, y, strict=True)), [(x[0], (y[0],))]],
    )
    refused(
        "'x' of client 0 must have one row a sample", FromDict(), [{"x": torch.tensor(1.0), "y": y}]
    )


def test_one_client_and_empty_clients_are_fine():
    fit(federate(Lit(), datasets()[:1], rounds=1).run)
    some = [*datasets(), datasets(count=0)[0], []]
    made = federate(Lit(), some, rounds=1, test=0.2)
    fit(made.run)
    assert made.run.federation.blocks[0].train.lengths.tolist() == [6, 10, 4, 0, 0]


def test_numbers_that_are_none():
    broken = datasets()
    broken[1].tensors[0][4, 2] = float("nan")
    refused("'0' of client 1 holds NaN: fill it", Lit(), broken)
    refused("'0' of test of client 1 holds NaN", Lit(), datasets(), test=broken)
    refused("'0' of server_test holds NaN", Lit(), datasets(), server_test=broken[1])
    named = dict(zip(SIZES, broken, strict=True))
    refused("'0' of client 'bob' holds NaN", Lit(), named)


def test_what_is_no_tensor():
    items = [("text", 1), ("more", 2)]
    refused("'0' of a batch is a tuple of str|a list of str", Lit(), [items])
    refused(
        r"cannot be stacked.*give collate_fn=", Lit(), [[(torch.ones(2), 1), (torch.ones(3), 1)]]
    )
    frame = pd.DataFrame({"a": [1.0], "b": ["x"]})
    refused("column 'b' of client 0 is no numbers", FromColumns(), [frame])
    frame = pd.DataFrame({"a": [[1.0], [1.0, 2.0]]})
    refused("'a' of client 0 has rows of unequal lengths", FromColumns(), [frame])
    refused("'x' of client 0 cannot be a tensor", FromDict(), [{"x": ["a", "b"], "y": [1, 2]}])
    frame = pd.DataFrame([[1.0, 2.0]], columns=["a", "a"])
    refused("client 0 has two columns 'a'", FromColumns(), [frame])
    refused("client 0 has two columns '1'", FromDict(), [{1: torch.ones(2), "1": torch.ones(2)}])
    words = {"x": np.array(["a", "b"]), "y": np.arange(2)}
    refused("'x' of client 0 cannot be a tensor", FromDict(), [words])


def test_samples_that_are_drawn_anew():
    class Noisy(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, place):
            return torch.rand(3), 1

    refused("gives another sample 0 each time", Lit(), [Noisy()])

    class Flipped(Dataset):
        """As of a transform that flips one picture in two."""

        def __init__(self):
            self.draw = np.random.default_rng(0)

        def __len__(self):
            return 40

        def __getitem__(self, place):
            return torch.arange(3.0) if self.draw.random() < 0.5 else torch.arange(3.0).flip(0)

    refused("gives another sample .* each time", Lit(), [Flipped()])


def test_collate_functions():
    items = [list(zip(*samples(name), strict=True)) for name in SIZES]

    def summed(batch):
        x, y = (torch.stack(part) for part in zip(*batch, strict=True))
        return x + x.sum(), y

    def all_in_one(batch):
        return torch.ones(3), torch.ones(3)

    refused("gives a sample other rows in another batch", Lit(), items, collate_fn=summed)
    refused("its first axis must be the samples", Lit(), items, collate_fn=all_in_one)
    refused("not of a dict of tensors: leave it out", FromDict(), dicts(), collate_fn=summed)


def test_who_holds_what():
    x, y = (torch.cat(part) for part in zip(*map(samples, SIZES), strict=True))
    data = {"x": x, "y": y, "user": y}
    deal = partition.uniform(3)
    refused("no column 'users': did you mean 'user'", FromDict(), data, client_column="users")
    refused("give one", FromDict(), data, client_column="user", partition=deal)
    refused("client_column= shares one data set out", FromDict(), dicts(), client_column="user")
    refused("partition= shares one data set out", FromDict(), dicts(), partition=deal)
    refused(
        "names a field of samples that are dicts", Lit(), TensorDataset(x, y), client_column="1"
    )
    refused("partition is a str", FromDict(), data, partition="dirichlet")
    no_name = {**data, "user": [None] * len(y)}
    refused("names no client in some rows", FromDict(), no_name, client_column="user")
    empty = {name: values[:0] for name, values in data.items()}
    refused("no client has a sample", FromDict(), empty, client_column="user")
    refused("samples", FromDict(), data, partition=partition.uniform(300))
    refused("labels='z' is no field", FromDict(), data, partition=partition.shards(2, labels="z"))
    refused(
        "one whole number a sample", FromDict(), data, partition=partition.shards(2, labels="x")
    )
    unnamed = {"x": x, "z": y}
    refused("needs a field of them: name it", FromDict(), unnamed, partition=partition.shards(2))
    frame = pd.DataFrame({"x": [1.0, 2.0], "user": pd.array(["a", None], dtype="string")})
    refused("names no client in some rows", FromDict(), frame, client_column="user")
    with pytest.raises(UserError, match="n_clients is 0"):
        partition.dirichlet(0.3, n_clients=0)
    with pytest.raises(UserError, match="alpha is 'x': choose a number"):
        partition.dirichlet("x")
    with pytest.raises(UserError, match=r"per_client is 1\.5: choose a whole number"):
        partition.shards(3, per_client=1.5)
    assert partition.uniform(np.int64(4)).n_clients == 4
    one = TensorDataset(x, y)
    refused("test is one data set.*a share.*server_test=", Lit(), one, partition=deal, test=one)
    refused("device='gpu': give 'cpu'", Lit(), datasets(), device="gpu")


def test_what_is_held_out():
    refused("valid=1.5: a share", Lit(), datasets(), valid=1.5)
    refused("test=-0.1: a share", Lit(), datasets(), test=-0.1)
    refused("test=nan", Lit(), datasets(), test=float("nan"))
    refused("valid=1: give a share", Lit(), datasets(), valid=1)
    refused("valid=True", Lit(), datasets(), valid=True)
    refused("take 1.1 of the samples", Lit(), datasets(), valid=0.6, test=0.5)
    refused("test has 2 data sets for 3 clients", Lit(), datasets(), test=datasets()[:2])
    refused("test is one data set", Lit(), datasets(), test=datasets()[0])
    named = dict(zip(SIZES, datasets(), strict=True))
    other = {"zoe": datasets()[0]}
    refused("test has client 'zoe', who has nothing to train on", Lit(), named, test=other)
    refused("test has the fields|another form|fields", Lit(), datasets(), test=dicts())
    wide = TensorDataset(torch.ones(4, 5), torch.zeros(4).long())
    refused(r"'0' of server_test is float32 of shape \(5,\)", Lit(), datasets(), server_test=wide)
    refused("server_test is a str", Lit(), datasets(), server_test="x")


def test_modules_that_count_are_told_as_everywhere():
    class Counting(Lit):
        seen = 0

        def training_step(self, batch, batch_idx):
            self.seen += 1
            return super().training_step(batch, batch_idx)

    refused("Counting.loss changes itself", Counting(), datasets(), "scaffold", rounds=1, run=True)
    fit(federate(Counting(), datasets(), rounds=1).run)
