"""What the benchmark compares with: the autoencoder in plain torch, users from a `DataLoader`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset

from benchmarks.assisted.sizes import Drawn
from coterie.assisted.aae.batches import RowBatches
from coterie.assisted.aae.network import AAE, DECODER, RATINGS, Params
from coterie.assisted.aae.training import Plan

Row = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


class PlainAAE(nn.Module):
    """The network of `AAE` as it is usually written, with all ``(B, n_outputs)`` outputs."""

    def __init__(self, network: AAE) -> None:
        super().__init__()
        features = {RATINGS: network.n_inputs, **network.sides}
        self.encoders = nn.ModuleDict({n: _encoder(d, network) for n, d in features.items()})
        self.dropout = nn.Dropout(network.dropout)
        self.decoder = nn.Sequential(
            nn.Linear(network.code, network.hidden),
            nn.Tanh(),
            nn.Linear(network.hidden, network.n_outputs),
        )

    def forward(self, features: Row, keep: Tensor | None = None) -> Tensor:
        """Give the outputs ``(B, n_outputs)``; ``keep`` ``(B, code)`` stands in for dropout."""
        codes = [encoder(features[name]) for name, encoder in self.encoders.items()]
        code = torch.stack(codes).sum(0)
        output: Tensor = self.decoder(self.dropout(code) if keep is None else code * keep)
        return output

    def parts(self) -> Iterator[tuple[str, Tensor, bool]]:
        """Yield each parameter with its name in `AAE`, and whether it is transposed there."""
        for name, encoder in self.encoders.items():
            assert isinstance(encoder, nn.Sequential)
            yield from _layer(f"{name}.wide", encoder[0], True)
            yield from _layer(f"{name}.code", encoder[2], False)
        yield from _layer(f"{DECODER}.hidden", self.decoder[0], False)
        yield from _layer(f"{DECODER}.wide", self.decoder[2], False)

    @torch.no_grad()
    def load(self, params: Params) -> PlainAAE:
        """Copy parameters of `AAE`."""
        for name, parameter, transposed in self.parts():
            parameter.copy_(params[name].T if transposed else params[name])
        return self

    @torch.no_grad()
    def params(self) -> Params:
        """Copy parameters, as those of `AAE`."""
        return {n: (p.T if turned else p).clone() for n, p, turned in self.parts()}


class Users(Dataset[Row]):
    """One user's dense rows at a time: ratings, sides, targets and which of them count."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn, inputs = drawn, drawn.inputs
        self.own = inputs.columns.offsets.tolist()
        self.all = drawn.pattern.columns.offsets.tolist()

    def __len__(self) -> int:
        return len(self.drawn.inputs)

    def __getitem__(self, user: int) -> Row:
        inputs, pattern = self.drawn.inputs, self.drawn.pattern
        own = slice(self.own[user], self.own[user + 1])
        every = slice(self.all[user], self.all[user + 1])
        ratings = inputs.values.new_zeros(inputs.n_columns)
        ratings[inputs.columns.values[own]] = inputs.values[own]
        targets = ratings.new_zeros(pattern.n_columns)
        mask = torch.zeros(pattern.n_columns, dtype=torch.bool)
        columns = pattern.columns.values[every]
        targets[columns], mask[columns] = self.drawn.values[every], True
        sides = {name: features[user] for name, features in inputs.sides.items()}
        return {RATINGS: ratings, "targets": targets, "mask": mask, **sides}


class UserLoop:
    """Training with autograd, `torch.optim.Adam` and `clip_grad_norm_`.

    Args:
        network: sizes.
        drawn: what is trained on.
        plan: how; masking of inputs and targets is not known here.
        params: to begin with.
        seed: of the order of the users and of the dropout.
    """

    def __init__(
        self, network: AAE, drawn: Drawn, plan: Plan, params: Params, seed: int = 0
    ) -> None:
        self.module = PlainAAE(network).to(drawn.values.dtype).load(params)
        self.users, self.plan, self.seed = Users(drawn), plan, seed
        self.adam = torch.optim.Adam(
            self.module.parameters(), lr=plan.lr, weight_decay=plan.weight_decay
        )

    def epoch(self) -> float:
        """Train for an epoch; gives the mean loss of its steps."""
        order = torch.Generator().manual_seed(self.seed)
        loader = DataLoader(self.users, self.plan.batch_rows, shuffle=True, generator=order)
        with torch.random.fork_rng(devices=[]):
            return _mean([self._step(batch) for batch in loader])

    def same_epoch(self, batches: RowBatches) -> float:
        """Train on the rows of the engine's first epoch, with what it drops."""
        numbers = range(batches.per_epoch)
        rows: Sequence[list[int]] = [batches.rows(number).tolist() for number in numbers]
        loader = DataLoader(self.users, batch_sampler=rows)
        pairs = zip(numbers, loader, strict=True)
        return _mean([self._step(batch, batches(number).keep) for number, batch in pairs])

    def _step(self, batch: Row, keep: Tensor | None = None) -> float:
        mask = batch["mask"]
        loss = nn.functional.mse_loss(self.module(batch, keep)[mask], batch["targets"][mask])
        self.adam.zero_grad()
        loss.backward()
        if self.plan.clip is not None:
            clip_grad_norm_(self.module.parameters(), self.plan.clip)
        self.adam.step()
        return float(loss.detach())


def _encoder(features: int, network: AAE) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(features, network.hidden),
        nn.Tanh(),
        nn.Linear(network.hidden, network.code),
        nn.Tanh(),
    )


def _layer(name: str, layer: nn.Module, transposed: bool) -> Iterator[tuple[str, Tensor, bool]]:
    assert isinstance(layer, nn.Linear)
    yield f"{name}.weight", layer.weight, transposed
    yield f"{name}.bias", layer.bias, False


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)
