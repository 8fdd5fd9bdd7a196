"""PF-MSMTrec as a loop over scenarios: one network and one `torch.optim` optimizer each.

Nothing here knows of stacked parameters, private state or messages. W_s is a dict of what is
uploaded of it, under the names of the uploads, each ``(N, ...)``; a tower's parameter is
``(T, ...)``. Sums over scenarios and experts are loops over vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from tests.msmt.small_scenarios import SEED
from torch import Tensor, nn

from coterie.core.data.samples.samples import MiniBatches
from coterie.core.tensors.keys import Key
from coterie.msmt.aggregation.coordination import coordinate
from coterie.msmt.data.task import Task
from coterie.msmt.models.make import network
from coterie.msmt.models.template import TemplateMMoE
from coterie.msmt.settings import Settings

Tree = dict[str, Tensor]
Place = tuple[int, int]
EPSILON = 1e-3
PARTS = {
    "embeddings": ["inputs.*"],
    "experts": ["weight", "task_generator.*", "scenario_generator.*", "first.*", "rest.*"],
    "gates": ["gates.*"],
}


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Eq. 22: mean over samples, sum over tasks."""
    p, y = logits.sigmoid(), labels.to(logits.dtype)
    return -(y * p.log() + (1 - y) * (1 - p).log()).sum() / len(logits)


def generated(module: TemplateMMoE, factored: bool) -> Tree:
    """What the network generates of W_s (Eq. 3), or of its factors, expert by expert."""
    made, shape = module.scenario_generator, module.weight.shape[1:]
    if made is None:
        return {"scenario": module.scenario}
    rows, columns, whole = [], [], []
    for n in range(len(module.weight)):
        inner = (made.embedding[0] @ made.weight[n] + made.bias[n, 0]).clamp(min=0)
        numbers = inner @ made.head[n] + made.head_bias[n, 0]
        if len(numbers) == shape[0] + shape[1]:
            v, u = numbers[: shape[0]], numbers[shape[0] :]
            rows.append(v)
            columns.append(u)
            whole.append(torch.stack([1 + a + u for a in v]))
        else:
            whole.append(1 + numbers.reshape(shape))
    if factored:
        return {"scenario.rows": torch.stack(rows), "scenario.columns": torch.stack(columns)}
    return {"scenario": torch.stack(whole)}


def matrix(tree: Tree) -> Tensor:
    """``(N, D, h1)`` of W_s, or of factors without the 1 around which they are."""
    if "scenario" in tree:
        return tree["scenario"]
    return tree["scenario.rows"][:, :, None] + tree["scenario.columns"][:, None, :]


def mean_of(values: Iterable[Tensor]) -> Tensor:
    """Mean of tensors, one after the other."""
    each = list(values)
    total = torch.zeros_like(each[0])
    for one in each:
        total = total + one
    return total / len(each)


def by_part(values: Tensor, like: Tensor) -> Tensor:
    """Numbers ``(K,)`` of experts or tasks, as they multiply ``(K, ...)``."""
    return values.reshape(-1, *[1] * (like.dim() - 1))


@dataclass
class Scenario:
    """A scenario j.

    Attributes:
        j: its number.
        module: its network; running statistics and ψ are in it.
        held: W_s, towers and what else is averaged, as they were after the last aggregation.
        residual: of W_s.
        direction: U* of W_s and of the towers.
        added: Σ ψ U* of all rounds, of W_s.
        anchor: W̄ + what was added before, None before the first aggregation.
    """

    j: int
    module: TemplateMMoE
    settings: Settings
    held: Tree = field(default_factory=dict)
    residual: Tree = field(default_factory=dict)
    direction: Tree = field(default_factory=dict)
    added: Tree = field(default_factory=dict)
    anchor: Tree | None = None
    optimizer: Any = None
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        factored = self.settings.pf.upload == "factored"
        nothing = {n: torch.zeros_like(v) for n, v in self.generated().items()}
        self.residual, self.one = nothing, 1.0 if factored else 0.0
        self.added = dict(nothing)
        self.direction = {n: torch.zeros_like(v) for n, v in {**nothing, **self.towers()}.items()}
        self.held = self.federated()

    @torch.no_grad()
    def generated(self) -> Tree:
        made = generated(self.module, self.settings.pf.upload == "factored")
        return {name: value.clone() for name, value in made.items()}

    def towers(self) -> Tree:
        return self.named("towers.*")

    def shared(self) -> Tree:
        return self.named(*(p for part in self.settings.pf.share for p in PARTS[part]))

    def named(self, *patterns: str) -> Tree:
        return {
            name: value.detach().clone()
            for name, value in self.module.named_parameters()
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        }

    def federated(self) -> Tree:
        """W_s = generated + residual + ψ U*, Θ + ψ' U*, and what else is averaged."""
        psi, psi_tower = self.module.psi.detach(), self.module.psi_tower.detach()
        found = dict(self.shared())
        for name, value in self.generated().items():
            u = self.direction[name]
            found[name] = value + self.residual[name] + by_part(psi, value) * u
        for name, value in self.towers().items():
            found[name] = value + by_part(psi_tower, value) * self.direction[name]
        return found

    def train(self, batches: list[Tree], key: Key) -> None:
        """Train on L_j (Eqs. 22 to 24)."""
        options, train = self.settings.pf, self.settings.train
        free = [v for n, v in self.module.named_parameters() if options.psi or "psi" not in n]
        if self.optimizer is None or not train.keep_moments:
            kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[train.optimizer]
            self.optimizer = kind(free, lr=train.lr, weight_decay=train.weight_decay)
        self.module.train()
        self.losses = []
        for number, batch in enumerate(batches):
            self.optimizer.zero_grad()
            with key.fold("draws").fold(number).torch_rng():  # of dropout
                loss = cross_entropy(self.module.logits(batch), batch["labels"])
            if self.anchor is not None:
                loss = loss + options.lam * self.apart(matrix(self.anchor) + self.one)
            loss.backward()
            for value in free:
                if value.grad is None:  # as of a bias before normalisation: it decays
                    value.grad = torch.zeros_like(value)
            if train.clip is not None:
                nn.utils.clip_grad_norm_(free, train.clip)
            self.optimizer.step()
            self.losses.append(loss.item())

    def apart(self, anchor: Tensor) -> Tensor:
        """Eq. 23, with means in place of sums over an expert's numbers."""
        psi, made = self.module.psi, generated(self.module, factored=False)["scenario"]
        total = torch.zeros((), dtype=anchor.dtype)
        for n, one in enumerate(made):
            offset, u = matrix(self.residual)[n], matrix(self.direction)[n]
            total = total + (one + offset + psi[n] * u - anchor[n]).square().mean()
        return total

    @torch.no_grad()
    def receive(self, mean: Tree, direction: Tree, average: Tree) -> None:
        """Eqs. 18 and 21."""
        base = {name: value + mean[name] for name, value in self.held.items()}
        parameters, buffers = (
            dict(self.module.named_parameters()),
            dict(self.module.named_buffers()),
        )
        for name in [*self.towers(), *self.shared()]:
            parameters[name].copy_(base[name])
        self.residual = {n: base[n] - value for n, value in self.generated().items()}
        self.direction = direction
        self.anchor = {n: average[n] + value for n, value in self.added.items()}
        scenario = {n: u for n, u in direction.items() if n in self.residual}
        self.module.scenario_residual.copy_(matrix(self.residual))
        self.module.scenario_direction.copy_(matrix(scenario))
        for name in self.towers():
            short = name.removeprefix("towers.").replace(".", "_")
            buffers[f"tower_{short}_direction"].copy_(direction[name])
        self.held = self.federated()
        for name, value in self.added.items():
            psi = self.module.psi.detach()
            self.added[name] = value + by_part(psi, value) * direction[name]


@dataclass
class Aggregated:
    """ΔW̄ and U* of every scenario, and W̄."""

    mean: Tree
    direction: list[Tree]
    average: Tree


class Loop:
    """Rounds of PF-MSMTrec among scenarios, dropout included.

    Args:
        settings: of a run, with the reading resolved.
        task: its samples.
    """

    def __init__(self, settings: Settings, task: Task) -> None:
        self.settings, self.data = settings, task.clients
        root = Key.from_seed(SEED)
        self.secret, self.server_key = root.fold("clients"), root.fold("server")
        build = network(settings, task.schema)
        self.scenarios = []
        for j in range(len(self.data)):
            with self.server_key.fold("begin").torch_rng():
                module = build()
            assert isinstance(module, TemplateMMoE)
            self.scenarios.append(Scenario(j, module, settings))
        first = self.scenarios[0]
        self.names = {"experts": list(first.residual), "towers": list(first.towers())}
        federated = [name for names in self.names.values() for name in names]
        self.reference = {name: first.held[name] for name in federated}
        self.average = {name: self.literal(name, [0]) for name in self.names["experts"]}
        if settings.pf.fedbn != "literal":
            self.average = self.plain_average({0: first.held}, "experts", zero=True)
        self.average |= self.plain_average({0: first.held}, "towers", zero=True)

    def rounds(self, count: int, first: int = 1) -> Loop:
        for number in range(first, first + count):
            self.round(number)
        return self

    def chosen(self, number: int) -> list[int]:
        fraction, ids = self.settings.train.participation, self.data.ids
        if fraction == 1:
            return ids.tolist()
        key = self.server_key.fold("block", 0, "round", number).fold("sample")
        draws = [(float(key.fold(int(j)).uniform(dtype=torch.float64)), int(j)) for j in ids]
        return sorted(j for _, j in sorted(draws)[: max(1, round(fraction * len(ids)))])

    def batches(self, j: int, key: Key) -> Iterator[Tree]:
        one, train = self.data.train.take(torch.tensor([j])), self.settings.train
        found = MiniBatches(one, train.epochs, train.batch_size, key, by_place=True, at_least=2)
        for number in range(int(found.steps[0])):
            batch = found(number, torch.tensor([0]))
            yield {name: values[0] for name, values in batch.items()}

    def round(self, number: int) -> None:
        """Train those chosen, aggregate what they have, and give it to them."""
        sent, chosen = {}, self.chosen(number)
        for j in chosen:
            one = self.scenarios[j]
            key = self.secret.fold(torch.tensor([j])).fold("update", 0, number, 0)
            one.train(list(self.batches(j, key)), key)
            now = one.federated()
            sent[j] = {name: now[name] - one.held[name] for name in now}
        found = {kind: self.aggregate(sent, kind) for kind in self.names}
        experts, further = found["experts"], self.settings.pf.server_lr
        for name, mean in experts.mean.items():
            experts.average[name] = experts.average[name] - mean + further * mean
            experts.mean[name] = further * mean
        shared = {
            name: self.weighted(sent, name)
            for name in self.scenarios[0].shared()
        }  # fmt: skip
        own = self.settings.pf.centre == "own" and self.settings.pf.coordinate
        for one in self.scenarios:  # also who did not train
            place = chosen.index(one.j) if one.j in chosen else 0
            mean, direction, average = dict(shared), Tree(), Tree()
            for of_kind in found.values():
                mean |= of_kind.mean
                direction |= of_kind.direction[place]
                average |= of_kind.average
            if own and one.j not in chosen:
                direction = {name: torch.zeros_like(u) for name, u in direction.items()}
            one.receive(mean, direction, average)
        for kind in found.values():
            self.average |= kind.average
            self.reference |= {n: self.reference[n] + kind.mean[n] for n in kind.mean}

    def aggregate(self, sent: dict[int, Tree], kind: str) -> Aggregated:
        options, names = self.settings.pf, self.names[kind]
        if {"experts": options.expert, "towers": options.tower}[kind] == "fedavg":
            mean = {name: self.weighted(sent, name) for name in names}
            nothing = {name: torch.zeros_like(value) for name, value in mean.items()}
            after = {name: self.reference[name] + mean[name] for name in names}
            return Aggregated(mean, [nothing] * len(sent), after)
        if kind == "experts" and options.fedbn == "literal":
            average = {name: self.literal(name, list(sent)) for name in names}
        else:
            average = self.plain_average(sent, kind)
        increments = sent
        if options.increments == "averages":
            change = {name: average[name] - self.average[name] for name in names}
            increments = dict.fromkeys(sent, change)
        return self.coordinated(sent, increments, kind, average)

    def coordinated(
        self, sent: dict[int, Tree], increments: dict[int, Tree], kind: str, average: Tree
    ) -> Aggregated:
        """Eqs. 7 and 12 to 17."""
        parts = range(len(self.reference[self.names[kind][0]]))
        means: dict[Place, Tensor] = {}
        directions: dict[Place, Tensor] = {}
        spread = self.spread(sent) if self.whitens(kind) else None
        for places in self.problems(list(sent), parts, kind):
            deltas = [self.vector(increments[j], kind, n) for j, n in places]
            mean = mean_of(deltas)
            for place, u in zip(places, self.solved(deltas, mean, spread), strict=True):
                means[place], directions[place] = mean, u
        return Aggregated(
            self.cut(kind, {n: means[next(iter(sent)), n] for n in parts}),
            [self.cut(kind, {n: directions[j, n] for n in parts}) for j in sent],
            average,
        )

    def solved(self, deltas: list[Tensor], mean: Tensor, spread: Tensor | None) -> list[Tensor]:
        """U* of each increment."""
        options = self.settings.pf
        if not options.coordinate:
            return [mean] * len(deltas)
        if options.increments == "averages":  # all are the same: the ball's end
            return [(1 + options.c) * mean] * len(deltas)
        white = deltas if spread is None else [delta / spread for delta in deltas]
        gram = torch.tensor([[float(a @ b) for b in white] for a in white], dtype=torch.float64)
        found = coordinate(gram, options.c, centre=options.centre).mix
        mixes = found if len(found) > 1 else found.expand(len(deltas), -1)
        made = [
            mean_of(len(mix) * share * one for share, one in zip(mix, white, strict=True))
            for mix in mixes
        ]
        return made if spread is None else [u * spread for u in made]

    def spread(self, sent: dict[int, Tree]) -> Tensor:
        """sqrt(σ_g² + ε mean σ_g²) over all uploaded W_s, as the server knows them (Eq. 7)."""
        parts = range(len(self.reference[self.names["experts"][0]]))
        everyone = [
            self.vector(self.reference, "experts", n) + self.vector(sent[j], "experts", n)
            for j in sent
            for n in parts
        ]
        mean = mean_of(everyone)
        variance = mean_of((one - mean) ** 2 for one in everyone)
        return (variance + EPSILON * variance.mean()).sqrt()

    def whitens(self, kind: str) -> bool:
        return kind == "experts" and self.settings.pf.fedbn == "increment"

    def problems(self, chosen: list[int], parts: range, kind: str) -> list[list[Place]]:
        if kind == "towers" or self.settings.pf.per_expert:
            return [[(j, n) for j in chosen] for n in parts]
        return [[(j, n) for j in chosen for n in parts]]

    def vector(self, tree: Tree, kind: str, n: int) -> Tensor:
        return torch.cat([tree[name][n].flatten() for name in self.names[kind]])

    def cut(self, kind: str, vectors: dict[int, Tensor]) -> Tree:
        """Undo `vector` for all parts."""
        found, start = {}, 0
        for name in self.names[kind]:
            shape = self.reference[name].shape[1:]
            stop = start + math.prod(shape)
            found[name] = torch.stack([one[start:stop].reshape(shape) for one in vectors.values()])
            start = stop
        return found

    def weighted(self, sent: dict[int, Tree], name: str) -> Tensor:
        counts = {j: 1.0 for j in sent}
        if self.settings.pf.weighting == "samples":
            counts = {j: float(self.data.lengths[j]) for j in sent}
        total = mean_of(counts[j] * sent[j][name] for j in sent)
        return total * len(sent) / sum(counts.values())

    def plain_average(self, sent: dict[int, Tree], kind: str, zero: bool = False) -> Tree:
        """W̄ of what was uploaded, as the server knows it; ``zero`` for nothing uploaded."""
        found = {}
        for name in self.names[kind]:
            old = self.reference[name]
            mean = mean_of(old if zero else old + one[name] for one in sent.values())
            if kind == "experts" and not self.settings.pf.per_expert:
                mean = mean_of(mean).expand_as(mean)
            found[name] = mean
        return found

    def literal(self, name: str, chosen: list[int]) -> Tensor:
        """β_g in the form of the experts' parameters (Appendix A)."""
        norms = [self.scenarios[j].module.get_parameter("input_norm.bias") for j in chosen]
        beta = mean_of(one.detach() for one in norms)
        like = self.scenarios[0].residual[name]
        if name == "scenario.columns":
            return beta.mean().expand_as(like)
        return beta.reshape(-1, *[1] * (like.dim() - 2)).expand_as(like)
