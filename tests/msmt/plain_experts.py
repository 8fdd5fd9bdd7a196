"""MMoE and the template's network in plain torch, row by row, from a fast network's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.msmt.models.base import Batch
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.models.template import TemplateMMoE

Statistics = dict[str, Tensor]


class PlainExperts:
    """The logits of a fast network, by materialised weights and ``nn.functional`` alone.

    Args:
        network: whose parameters and statistics are taken; nothing of it is changed.

    Attributes:
        statistics: the running statistics afterwards, by name.
    """

    def __init__(self, network: MMoE) -> None:
        self.network, self.training = network, network.training
        named = network.named_buffers()
        self.statistics = {n: v.clone() for n, v in named if "running" in n or "tracked" in n}

    def logits(self, batch: Batch) -> Tensor:
        net = self.network
        x = net.inputs(batch)
        if net.input_norm is not None:
            x = self.normal("input_norm", net.input_norm, (), x)
        outputs = [self.task(t, x) for t in range(net.schema.n_tasks)]
        for name in self.statistics:
            if name.endswith("tracked") and self.training:
                self.statistics[name] += 1
        return torch.stack(outputs, 1)

    def task(self, t: int, x: Tensor) -> Tensor:
        net = self.network
        experts = [self.expert(t, n, x) for n in range(net.settings.experts)]
        gate = net.gates.weight.unflatten(1, (-1, net.settings.experts))[:, t]
        shares = (x @ gate + net.gates.bias[t]).softmax(1)
        found = sum(shares[:, n, None] * each for n, each in enumerate(experts))
        direction = dict(net.named_buffers())
        psi = getattr(net, "psi_tower", torch.zeros(net.schema.n_tasks))

        def at(name: str) -> Tensor:
            value = net.get_parameter(f"towers.{name}")[t]
            sent = direction.get(f"tower_{name.replace('.', '_')}_direction")
            return value if sent is None else value + psi[t] * sent[t]

        for number, layer in enumerate(net.towers.hidden):
            name = f"hidden.{number}"
            found = found @ at(f"{name}.weight").T + at(f"{name}.bias")
            if layer.norm is not None:
                gain, shift = at(f"{name}.norm.weight"), at(f"{name}.norm.bias")
                found = self.normal(f"towers.{name}.norm", layer.norm, (t,), found, gain, shift)
            found = found.relu()
        return (found @ at("weight").T + at("bias"))[:, 0]

    def expert(self, t: int, n: int, x: Tensor) -> Tensor:
        net = self.network
        templated = isinstance(net, TemplateMMoE)
        place = (t, n) if templated else (n,)
        weight = template(net, t, n) if templated else net.weight[n]
        found = x @ weight + net.first.bias[place]
        layers = [("first", net.first), *((f"rest.{i}", each) for i, each in enumerate(net.rest))]
        for number, (name, layer) in enumerate(layers):
            if number:
                found = found @ layer.weight[n].T + layer.bias[n]
            if layer.norm is not None:
                kept = self.seen(name, t, templated)
                found = self.normal(f"{name}.norm", layer.norm, place, found, tracked=kept)
            found = found.relu()
        return found

    def seen(self, name: str, t: int, templated: bool) -> bool:
        """Whether statistics are of this task: MMoE's experts serve all with one pass."""
        return templated or t == 0

    def normal(
        self,
        name: str,
        norm: Any,
        place: tuple[int, ...],
        x: Tensor,
        gain: Tensor | None = None,
        shift: Tensor | None = None,
        tracked: bool = True,
    ) -> Tensor:
        mean, variance = (self.statistics[f"{name}.running_{of}"] for of in ("mean", "var"))
        if not tracked:
            mean, variance = mean.clone(), variance.clone()
        return nn.functional.batch_norm(
            x,
            mean[place],
            variance[place],
            norm.weight[place] if gain is None else gain,
            norm.bias[place] if shift is None else shift,
            self.training,
        )


def generated(generator: Any, which: int, n: int) -> Tensor:
    """What a generator makes of one embedding for one expert."""
    inner = (generator.embedding[which] @ generator.weight[n] + generator.bias[n, 0]).relu()
    return inner @ generator.head[n] + generator.head_bias[n, 0]


def template(net: TemplateMMoE, t: int, n: int) -> Tensor:
    """E[t, n], all of it."""
    return net.weight[n] * whole(net, net.task_generator, t, n) * scenario(net, n)


def scenario(net: TemplateMMoE, n: int) -> Tensor:
    """W_s[n]."""
    made = (
        net.scenario[n]
        if net.scenario_generator is None
        else whole(net, net.scenario_generator, 0, n)
    )
    return made + net.scenario_residual[n] + net.psi[n] * net.scenario_direction[n]


def whole(net: TemplateMMoE, generator: Any, which: int, n: int) -> Tensor:
    """A generated weight ``(D, h1)``: all its numbers, or a row's and a column's part."""
    found, shape = generated(generator, which, n), net.weight.shape[1:]
    if found.numel() == shape.numel():
        return 1 + found.view(shape)
    rows, columns = found.split(list(shape))
    return 1 + rows[:, None] + columns[None]


def assert_same(network: MMoE, batch: Batch, within: float = 1e-12) -> None:
    """Hold logits, gradients of a loss and running statistics against the plain way.

    Args:
        network: in training or evaluation mode.
        batch: of samples.
        within: largest difference, beside the largest number of a tensor, or of all gradients, if
            that is above 1.
    """
    plain = PlainExperts(network)
    expected = plain.logits(batch)
    found = network.logits(batch)
    names, parameters = zip(*network.named_parameters(), strict=True)
    probe = torch.linspace(-1, 2, expected.numel()).double().view_as(expected)
    probe /= 1 + expected.detach().abs().max()
    theirs, ours = (
        torch.autograd.grad(
            (probe * logits).square().sum(), parameters, materialize_grads=True, allow_unused=True
        )
        for logits in (expected, found)
    )
    now = dict(network.named_buffers())
    pairs = {"logits": (found, expected)}
    pairs |= {name: (now[name].double(), value) for name, value in plain.statistics.items()}
    pairs |= {n: pair for n, *pair in zip(names, ours, theirs, strict=True)}
    steepest = max(float(gradient.abs().max()) for gradient in theirs)
    for name, (mine, other) in pairs.items():
        scale = max(1.0, float(other.detach().abs().max()), steepest * (name in names))
        assert float((mine - other).detach().abs().max()) <= within * scale, name
