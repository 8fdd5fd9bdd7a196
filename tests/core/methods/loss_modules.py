"""Modules whose loss is no mean over samples, or that torch cannot stack; in float64.

A sample has ``x``, ``(WIDTH,)``; ``i``, five numbers of words of which 0 is padding; ``y``, a
class; ``t``, five classes of which some are -100: no label; ``mask``, which of these have none;
``seed``, a number.
"""

import torch
import torch.nn.functional as F
from tests.core.methods.labelled_clients import CLASSES, WIDTH
from torch import nn

WORDS = 6


class Linear(nn.Module):
    """A layer whose scores the losses below are of."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(WIDTH, CLASSES).double()

    def scores(self, batch):
        return self.net(batch["x"])

    def loss(self, batch):
        return F.cross_entropy(self.scores(batch), batch["y"])


class ClassWeights(Linear):
    def loss(self, batch):
        weight = torch.tensor([1.0, 5.0, 0.2, 3.0], dtype=torch.float64)
        return F.cross_entropy(self.scores(batch), batch["y"], weight=weight)


class RareClassWeights(Linear):
    """From a head of zeros, where all samples have one loss and the weights cancel in its value."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.net.weight)
        nn.init.zeros_(self.net.bias)
        self.register_buffer("weight", torch.tensor([1.0, 1.0, 1.0, 9.0], dtype=torch.float64))

    def loss(self, batch):
        return F.cross_entropy(self.scores(batch), batch["y"], weight=self.weight)


class IgnoreIndex(Linear):
    def loss(self, batch):
        return F.cross_entropy(self.scores(batch), batch["t"][:, 0])


class Tokens(nn.Module):
    """Labels of words, of which a sample has more or fewer."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, 4).double(), nn.Linear(4, CLASSES).double()

    def loss(self, batch):
        return F.cross_entropy(self.out(self.table(batch["i"])).flatten(0, 1), batch["t"].flatten())


class Contrastive(Linear):
    """Each sample against the others of its batch."""

    def loss(self, batch):
        one, other = self.scores(batch), self.scores({"x": batch["x"].roll(1, -1)})
        return F.cross_entropy(one @ other.mT, torch.arange(len(one)))


class RootMeanSquare(Linear):
    def loss(self, batch):
        return (F.mse_loss(self.scores(batch)[:, 0], batch["y"].double()) + 1e-3).sqrt()


class Sum(Linear):
    def loss(self, batch):
        return 0.1 * F.cross_entropy(self.scores(batch), batch["y"], reduction="sum")


class Largest(Linear):
    def loss(self, batch):
        return F.cross_entropy(self.scores(batch), batch["y"], reduction="none").max()


class BatchDetached(Linear):
    """Equal in value to a mean over samples, not in its gradient."""

    def loss(self, batch):
        each = F.cross_entropy(self.scores(batch), batch["y"], reduction="none")
        return each.mean() * (2 - each.mean().detach() / each.mean())


class CentredByHand(Linear):
    """Normalises over the batch without a layer that says so."""

    def scores(self, batch):
        x = self.net(batch["x"])
        return x - x.mean(0)


class Penalty(Linear):
    """A mean over samples and something of the parameters alone."""

    def loss(self, batch):
        return super().loss(batch) + 0.05 * self.net.weight.square().sum()


class GradientPenalty(nn.Module):
    """Looks at a layer's weight by the gradient of its output, which training differentiates."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()

    def loss(self, batch):
        x = batch["x"].clone().requires_grad_()
        scores = self.net(x)
        (slope,) = torch.autograd.grad(scores.square().sum(), x, create_graph=True)
        return F.cross_entropy(scores, batch["y"]) + slope.square().sum(1).mean()


class NormedPenalty(GradientPenalty):
    def __init__(self):
        super().__init__()
        self.net.insert(1, nn.BatchNorm1d(5).double())


class InnerStep(Linear):
    """The loss after a step, by the gradient of a gradient."""

    def loss(self, batch):
        (slope,) = torch.autograd.grad(super().loss(batch), self.net.weight, create_graph=True)
        after = F.linear(batch["x"], self.net.weight - slope, self.net.bias)
        return F.cross_entropy(after, batch["y"])


class SlopeOfWeight(Linear):
    """Goes on without a word where there is no gradient."""

    def loss(self, batch):
        value = super().loss(batch)
        if torch.is_grad_enabled():
            (slope,) = torch.autograd.grad(
                value, self.net.weight, create_graph=True, allow_unused=True
            )
            value = value if slope is None else value + slope.square().sum()
        return value


class Hooked(Linear):
    """Changes the gradient in what a layer gives, as reversal layers do."""

    def scores(self, batch):
        scores = super().scores(batch)
        if scores.requires_grad:
            scores.register_hook(lambda slope: -0.5 * slope)
        return scores


class HookedLayer(Linear):
    def __init__(self):
        super().__init__()
        self.net.register_full_backward_pre_hook(lambda _, slopes: (3 * slopes[0],))


class TakesAway(Linear):
    """Leaves nothing in the dict that it is given."""

    def loss(self, batch):
        scores = self.scores({"x": batch.pop("x") * 2})
        batch["y"] = batch["y"].flip(0).flip(0)
        return F.cross_entropy(scores, batch.pop("y"))


class Squeezed(Linear):
    """A batch of one loses its axis."""

    def loss(self, batch):
        score = self.scores(batch)[:, :1].squeeze()
        return F.binary_cross_entropy_with_logits(score, (batch["y"] > 1).double().squeeze())


class PaddingRow(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, padding_idx=0).double()
        self.out = nn.Linear(4, CLASSES).double()

    def rows(self, batch):
        return self.table(batch["i"]).mean(1)

    def loss(self, batch):
        return F.cross_entropy(self.out(self.rows(batch)), batch["y"])


class Masked(PaddingRow):
    """Fields of the user's own by names that an engine may want for itself."""

    def rows(self, batch):
        kept = (batch["mask"] & (batch["seed"] > 0)[:, None]).double()
        return (self.table(batch["i"]) * kept[..., None]).sum(1)


class MaskedNormed(Masked):
    def __init__(self):
        super().__init__()
        self.out = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, CLASSES)).double()


class PaddingByFunction(PaddingRow):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 4).double()

    def rows(self, batch):
        return F.embedding(batch["i"], self.table.weight, padding_idx=0).mean(1)


class PaddingBag(PaddingRow):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(WORDS, 4, mode="sum", padding_idx=0).double()

    def rows(self, batch):
        return self.table(batch["i"])


class ByFrequency(PaddingRow):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, scale_grad_by_freq=True).double()


class Tied(nn.Module):
    """An output layer of the table's own weights: its padding row moves by that alone."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, padding_idx=0).double()
        self.out = nn.Linear(4, WORDS, bias=False).double()
        self.out.weight = self.table.weight

    def loss(self, batch):
        return F.cross_entropy(self.out(self.table(batch["i"]).sum(1)), batch["i"][:, 0])


class Normed(Linear):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).double()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 3).double()
        self.cells, self.out = nn.LSTM(3, 4, batch_first=True).double(), nn.Linear(4, 4).double()

    def states(self, batch):
        return self.cells(self.table(batch["i"]))[0][:, -1]

    def loss(self, batch):
        return F.cross_entropy(self.out(self.states(batch)), batch["y"])


class Packed(Recurrent):
    def states(self, batch):
        sizes = (batch["i"] > 0).sum(1).clamp(min=1)
        rows = nn.utils.rnn.pack_padded_sequence(
            self.table(batch["i"]), sizes, batch_first=True, enforce_sorted=False
        )
        return self.cells(rows)[1][0][0]


class _Doubled(torch.autograd.Function):
    """In the old form, which `vmap` does not know."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, slope):
        return 2 * slope


def _rows_of(each, batch):
    return {
        "mask": lambda: each[batch["y"] != 2].sum() / len(each),
        "masked_select": lambda: each.masked_select(batch["y"] != 2).sum() / len(each),
        "nonzero": lambda: each[(batch["y"] != 2).nonzero().flatten()].sum() / len(each),
        "unique": lambda: each.mean() * len(batch["y"].unique()),
        "item": lambda: each.mean() * (2.0 if each.sum().item() > 3 else 1.0),
        "if": lambda: each.mean() if each.sum() > 3 else 2 * each.mean(),
        "tolist": lambda: each.mean() * sum(batch["y"].tolist()),
        "numpy": lambda: each.mean() * float(batch["y"].numpy().max() + 1),
        "bincount": lambda: (each / batch["y"].bincount(minlength=4)[batch["y"]]).mean(),
        "histc": lambda: each.mean() * batch["x"].histc(4).max(),
        "function": lambda: _Doubled.apply(each).mean(),
        "out=": lambda: each.mean() * torch.sum(batch["x"], 0, out=batch["x"].new_empty(3)).sum(),
        "as_strided": lambda: each.as_strided((len(each),), (1,)).mean(),
        "loop": lambda: sum((one for one, y in zip(each, batch["y"], strict=True) if y), each[0]),
        "in place": lambda: torch.zeros(1, dtype=each.dtype).add_(each.sum())[0],
        "to device": lambda: (
            torch.tensor([float(e.detach()) for e in each]).double().sum() * each.mean()
        ),
        "repeat": lambda: each.repeat_interleave(batch["y"] + 1).mean(),
        "one_hot": lambda: (F.one_hot(batch["y"]).double() * each[:, None]).sum() / len(each),
        "masked_scatter": lambda: each.masked_scatter(batch["y"] > 1, each * 2).mean(),
    }


WAYS = tuple(_rows_of(None, None))


def unstackable(way):
    """A module whose loss does what `torch.func.vmap` does not, or not in every version."""

    class Way(Linear):
        def loss(self, batch):
            each = F.cross_entropy(self.scores(batch), batch["y"], reduction="none")
            return _rows_of(each, batch)[way]()

    Way.__name__ = Way.__qualname__ = f"Way[{way}]"
    return Way


MODULES = (
    *(Linear, ClassWeights, RareClassWeights, IgnoreIndex, Tokens, Contrastive, RootMeanSquare),
    *(Sum, Largest, BatchDetached, CentredByHand, Penalty, Squeezed, PaddingRow),
    *(PaddingByFunction, PaddingBag, ByFrequency, Tied, Normed, Recurrent, Packed),
    *(GradientPenalty, NormedPenalty, InnerStep, SlopeOfWeight, Hooked, HookedLayer, TakesAway),
    *(Masked, MaskedNormed),
)
