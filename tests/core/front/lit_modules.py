"""LightningModules as users write them, and clients with samples for them."""

import lightning
import torch
from torch import nn
from torch.utils.data import TensorDataset

SIZES = {"ann": 7, "bob": 12, "eve": 5}
CLASSES = 4


class Lit(lightning.LightningModule):
    """A classifier by its layers; its samples are tuples."""

    lr = 0.1

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(5)
            self.layers = self.build()
        self.loss = nn.CrossEntropyLoss()  # as many have it: a name that the core uses too

    def build(self):
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        value = self.loss(self(x), y)
        self.log("train_loss", value, prog_bar=True)
        return value

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Conv(Lit):
    """Convolutions with batch normalisation."""

    def build(self):
        conv = nn.Conv1d(1, 4, 2)
        return nn.Sequential(
            nn.Unflatten(1, (1, 3)),
            conv,
            nn.BatchNorm1d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8, CLASSES),
        )


class Recurrent(Lit):
    """An LSTM over the features, one after the other."""

    def build(self):
        return nn.ModuleList([nn.LSTM(1, 5, batch_first=True), nn.Linear(5, CLASSES)])

    def forward(self, x):
        states, _ = self.layers[0](x[:, :, None])
        return self.layers[1](states[:, -1])


class FromDict(Lit):
    """Samples are dicts."""

    def training_step(self, batch, batch_idx):
        return self.loss(self(batch["x"]), batch["y"])


class FromColumns(Lit):
    """A column for each feature."""

    def training_step(self, batch):
        x = torch.stack([batch[name] for name in "abc"], 1)
        return {"loss": self.loss(self(x), batch["y"])}


class Measured(Lit):
    """Logs more than its loss, and has steps to be measured by."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        value = self.loss(scores, y)
        self.log("train_loss", value)
        self.log_dict({"size": scores.detach().abs().mean()}, on_epoch=True)
        return value

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.log("val/acc", (scores.argmax(-1) == y).float().mean())
        self.log("val_nll", self.loss(scores, y))

    def test_step(self, batch, batch_idx):
        self.log("top", self(batch[0]).max())


def samples(name, count=None, seed=0):
    """Features and labels of a client, ``(n, 3)`` and ``(n,)``."""
    number = sorted(SIZES).index(name)
    draw = torch.Generator().manual_seed(100 * seed + number)
    count = SIZES[name] if count is None else count
    x = torch.randn(count, 3, generator=draw) + 0.4 * number
    return x, torch.randint(CLASSES, (count,), generator=draw)


def datasets(**more):
    """A TensorDataset for each client."""
    return [TensorDataset(*samples(name, **more)) for name in SIZES]


def dicts():
    """A dict of tensors for each client."""
    return [dict(zip("xy", samples(name), strict=True)) for name in SIZES]
