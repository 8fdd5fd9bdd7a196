"""Modules that are trained one client at a time: batch normalisation, torch's dropout, or both."""

import torch
from tests.core.methods.labelled_clients import CLASSES, WIDTH, Net
from torch import nn
from torch.nn import functional as F


class Mixing(nn.Module):
    """A layer, what is named, and a head, in float64."""

    def __init__(self, *parts: nn.Module):
        super().__init__()
        self.body = nn.Linear(WIDTH, 5)
        self.parts = nn.Sequential(*parts)
        self.head = nn.Linear(5, CLASSES)
        self.double()

    def forward(self, x):
        return self.head(self.parts(torch.tanh(self.body(x))))

    def loss(self, batch):
        return F.cross_entropy(self(batch["x"]), batch["y"])

    def correct(self, batch):
        return self(batch["x"]).argmax(-1) == batch["y"]


class Normed(Mixing):
    def __init__(self):
        super().__init__(nn.BatchNorm1d(5))


class Dropping(Mixing):
    def __init__(self):
        super().__init__(nn.Dropout(0.4))


class Both(Mixing):
    def __init__(self):
        super().__init__(nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Tanh(), nn.Dropout(0.2))


class Counting(Mixing):
    """Normalisation of one's own making; it is told by the names of its buffers."""

    def __init__(self):
        super().__init__(Centred())


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(5))
        self.register_buffer("scale", torch.full((5,), 0.5))

    def forward(self, x):
        if not self.training:
            return (x - self.running_mean) * self.scale
        mean = x.mean(0)
        self.running_mean.mul_(0.8).add_(0.2 * mean.detach())
        return (x - mean) * self.scale


__all__ = ["Both", "Centred", "Counting", "Dropping", "Mixing", "Net", "Normed"]
