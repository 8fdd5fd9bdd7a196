"""What the benchmark compares with: MMoE in plain torch, in the way of MTReclib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import Batch, MultiTask
from coterie.msmt.settings import ModelSettings

Of = Callable[[Tensor], Tensor | None]


class PlainMMoE(MultiTask):
    """MMoE row by row: one embedding table, a module for each expert, gate and tower.

    Args:
        schema: form of the samples, with categorical and numerical fields.
        settings: sizes.
    """

    start: Tensor

    def __init__(self, schema: Schema, settings: ModelSettings) -> None:
        super().__init__(schema)
        d, n_in = settings.embedding, settings.embedding * schema.n_inputs
        self.embedding = nn.Embedding(sum(schema.vocabularies), d)
        nn.init.xavier_uniform_(self.embedding.weight)
        sizes = torch.tensor(schema.vocabularies)
        self.register_buffer("start", sizes.cumsum(0) - sizes)
        self.numbers = nn.Linear(schema.n_numbers, d)
        self.gates = nn.ModuleList(
            nn.Sequential(nn.Linear(n_in, settings.experts), nn.Softmax(dim=1))
            for _ in schema.tasks
        )
        self.experts = nn.ModuleList(
            _perceptron(n_in, settings.expert_layers, settings) for _ in range(settings.experts)
        )
        last, width = settings.expert_layers[-1], settings.tower_layers[-1]
        self.towers = nn.ModuleList(
            _perceptron(last, settings.tower_layers, settings).append(nn.Linear(width, 1))
            for _ in schema.tasks
        )

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``."""
        fields = self.embedding(batch["ids"].long() + self.start)
        numbers = self.numbers(batch["numbers"].to(fields.dtype))
        x = torch.cat([fields, numbers[:, None]], dim=1).flatten(1)
        found = torch.stack([expert(x) for expert in self.experts], dim=1)
        towers = zip(self.gates, self.towers, strict=True)
        return torch.cat([tower((gate(x)[:, None] @ found)[:, 0]) for gate, tower in towers], 1)

    def as_ours(self, of: Of) -> dict[str, Tensor]:
        """Give something of each parameter by the names of `coterie.msmt.models.mmoe.MMoE`.

        Args:
            of: a parameter, in its shape: itself, or its gradient; None = zeros.
        """

        def stacked(modules: Iterable[nn.Module], name: str) -> Tensor:
            return torch.stack([_given(of, module.get_parameter(name)) for module in modules])

        tables = _given(of, self.embedding.weight).split(self.schema.vocabularies)
        found = {f"inputs.tables.{f}.weight": table for f, table in enumerate(tables)}
        found |= {f"inputs.numbers.{n}": _given(of, p) for n, p in self.numbers.named_parameters()}
        found["gates.weight"] = stacked(self.gates, "0.weight").flatten(0, 1).T
        found["gates.bias"] = stacked(self.gates, "0.bias")
        first, *rest = zip(*map(_layers, self.experts), strict=True)
        found["weight"] = stacked([linear for linear, _ in first], "weight").mT
        *hidden, last = zip(*map(_layers, self.towers), strict=True)
        names = ["first", *(f"rest.{n}" for n in range(len(rest)))]
        names += [f"towers.hidden.{n}" for n in range(len(hidden))]
        for name, layer in zip([*names, "towers"], [first, *rest, *hidden, last], strict=True):
            linears = [linear for linear, _ in layer]
            norms = [norm for _, norm in layer if norm is not None]
            found[f"{name}.bias"] = stacked(linears, "bias")
            if name != "first":
                found[f"{name}.weight"] = stacked(linears, "weight")
            if norms:
                found[f"{name}.norm.weight"] = stacked(norms, "weight")
                found[f"{name}.norm.bias"] = stacked(norms, "bias")
        return found


def _given(of: Of, parameter: Tensor) -> Tensor:
    found = of(parameter)
    return torch.zeros_like(parameter) if found is None else found


def _perceptron(n_in: int, widths: Sequence[int], settings: ModelSettings) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        norm = [nn.BatchNorm1d(width)] if settings.mlp_norm else []
        drop = [nn.Dropout(settings.dropout)] if settings.dropout else []
        layers += [nn.Linear(n_in, width), *norm, nn.ReLU(), *drop]
        n_in = width
    return nn.Sequential(*layers)


def _layers(module: nn.Module) -> Iterator[tuple[nn.Linear, nn.BatchNorm1d | None]]:
    """Yield the linear layers of a perceptron, each with the normalisation behind it."""
    parts = [*module.children(), None]
    for part, after in pairwise(parts):
        if isinstance(part, nn.Linear):
            yield part, after if isinstance(after, nn.BatchNorm1d) else None
