"""Organisations with random histories on a random Llama over item tokens, to be timed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.in_process import InProcess
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.journal import Journal
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbone_settings import LoraSettings
from coterie.llm.backbones.tiny_item import TinyItem
from coterie.llm.client import Organisation
from coterie.llm.data.examples import Examples, OrganisationData, Queries


@dataclass(frozen=True)
class Shape:
    """A Llama over item tokens, what is trained of it, and a batch.

    Attributes:
        layers: N.
        width: h.
        heads: attention heads.
        trained: low-rank adapters, or all parameters.
        n_items: items.
        history: items of a history.
        batch: examples in a step.
        lora: the adapters, where they are trained.
    """

    layers: int
    width: int
    heads: int = 4
    trained: Literal["lora", "all"] = "lora"
    n_items: int = 2000
    history: int = 10
    batch: int = 64
    lora: LoraSettings = field(default_factory=LoraSettings)

    def __str__(self) -> str:
        return f"{self.layers} x {self.width}, {_TRAINED[self.trained]}"

    def backbone(self) -> TinyItem:
        """Build it with random parameters."""
        key = Key.from_seed(0)
        model = TinyItem(
            self.n_items,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            context=self.history,
            key=key,
        )
        if self.trained == "lora":
            model.add_lora(self.lora, key)
        return model

    def examples(self, count: int, seed: int) -> Examples:
        """Draw examples with full histories."""
        each = self.history + 1
        drawn = Key.from_seed(1).fold(seed).integers(self.n_items, torch.arange(count * each))
        history = drawn.reshape(count, each)[:, :-1].flatten()
        lengths = torch.full((count,), self.history)
        return Examples(Ragged.from_lengths(history, lengths), drawn[self.history :: each])

    def organisations(self, clients: int, examples: int, queries: int = 0) -> OrganisationData:
        """Draw the data of K organisations, all with the same numbers of examples and queries."""
        train = [self.examples(examples, client) for client in range(clients)]
        asked = [_queries(self.examples(queries, clients + client)) for client in range(clients)]
        none = [torch.arange(0)] * clients
        return OrganisationData(torch.arange(clients), train, asked, asked, none, none)


_TRAINED = {"lora": "LoRA", "all": "all parameters"}


def enrolled(
    client: Organisation, data: OrganisationData, store: PrivateStore[Any] | None = None
) -> ExchangeCohort:
    """Make a cohort of all organisations, with their private state, as a run has it."""
    exchange = InProcess(client, [data], Key.from_seed(2).fold, kept=store)
    cohort = ExchangeCohort(exchange, data.ids, (0, 1), Ledger(), Journal())
    cohort.enrol()
    return cohort


def _queries(examples: Examples) -> Queries:
    targets = Ragged.from_lengths(examples.target, torch.ones_like(examples.target))
    nothing = Ragged.from_lengths(examples.target[:0], torch.zeros_like(examples.target))
    return Queries(torch.arange(len(examples)), examples.history, nothing, targets)
