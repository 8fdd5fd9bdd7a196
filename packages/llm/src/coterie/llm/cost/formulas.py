"""Storage, inference and communication of FedAvg and PPLR over k (PPLR, Table 2).

The printed formulas of Table 2 are lost from the paper's text; these are derived from its prose.
With N layers, a client that holds layers 1..k and N, A_l trained bytes and P_l bytes of a layer,
P_e and A_e those outside the layers, T tokens a round, width h and b bytes a number. M tokens are
those of the items' texts, where a model embeds all items anew in every round (RecFormer, in the
first of its two stages): they give no gradient, so they pass once up and once down.

=========  =====================  ================  ============================================
           storage                layers passed     communication in a round
=========  =====================  ================  ============================================
FedAvg     N P_l + P_e            N                 2 (N A_l + A_e)
PPLR       (k + 1) P_l + P_e      k + 1             2 ((k + 1) A_l + A_e) + (4 T + 2 M) h b
=========  =====================  ================  ============================================

A validation after the round costs (k + 1) A_l + A_e (FedAvg: N A_l + A_e) for the mixed adapter and
2 V h b for the V tokens of its users and items. Masks, a byte a token, and the few numbers of a
report are left out.

Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.core.errors import UserError


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a backbone, in numbers.

    Attributes:
        layers: parameters of each of the N layers, without LoRA.
        rest: parameters outside the layers: embeddings, last norm, head.
        trained_layers: trained parameters of each layer: of LoRA, or all.
        trained_rest: trained parameters outside the layers.
        hidden: width h of what passes from layer to layer.
        bytes: b, bytes a number, on disk and on the wire.
        wire: the same of hidden states on the wire; None for ``bytes``.
    """

    layers: tuple[int, ...]
    rest: int
    trained_layers: tuple[int, ...]
    trained_rest: int
    hidden: int
    bytes: int
    wire: int | None = None

    @property
    def depth(self) -> int:
        """N."""
        return len(self.layers)

    @property
    def crossing(self) -> int:
        """Bytes of one hidden state, one way: h b."""
        return self.hidden * (self.wire or self.bytes)

    @property
    def splits(self) -> range:
        """The values of k that leave a middle to the server; empty below 3 layers."""
        return range(1, self.depth - 1)

    def middle(self, k: int) -> slice:
        """Layers k + 1 to N - 1, the server's.

        Raises:
            UserError: there are none.
        """
        if k not in self.splits:
            remedy = f"choose 1 to {self.depth - 2}" if self.splits else "use at least 3 layers"
            raise UserError(f"k = {k} leaves no layer to the server of {self.depth}: {remedy}")
        return slice(k, self.depth - 1)


@dataclass(frozen=True)
class Usage:
    """What a client reads.

    Attributes:
        round_tokens: T, tokens in the training of a round, all local epochs and padding included.
        query_tokens: tokens to recommend once.
        item_tokens: M, tokens of the items' texts, embedded anew in every training.
        validation_tokens: V, tokens of a validation, those of items included.
    """

    round_tokens: float
    query_tokens: float
    item_tokens: float = 0
    validation_tokens: float = 0


@dataclass(frozen=True)
class Cost:
    """Of one client.

    Attributes:
        k: layers below the server's; None in FedAvg, where the client holds all.
        server_layers: on the server.
        storage: bytes of the model on the client.
        share: of all bytes of the model.
        passes: layers that the client runs for a token.
        adapters: bytes of trained parameters up and down in a round.
        activations: bytes of hidden states and their gradients up and down in a round.
        items: bytes of those that are the items' texts.
        validation: bytes up and down of a validation, the adapter's included.
        query: bytes to recommend once.
        break_even: tokens a round below which less is sent than in FedAvg.
    """

    k: int | None
    server_layers: int
    storage: int
    share: float
    passes: int
    adapters: int
    activations: float
    items: float
    validation: float
    query: float
    break_even: float

    @property
    def round(self) -> float:
        """Bytes up and down in a round."""
        return self.adapters + self.activations


def fedavg_cost(size: ModelSize) -> Cost:
    """Cost of holding the whole model and sending all that is trained.

    Example:
        >>> fedavg_cost(ModelSize((10,) * 4, 20, (1,) * 4, 0, 8, 2)).adapters
        16
    """
    trained = sum(size.trained_layers) + size.trained_rest
    storage = (sum(size.layers) + size.rest) * size.bytes
    down = trained * size.bytes
    return Cost(None, 0, storage, 1.0, size.depth, 2 * down, 0.0, 0.0, down, 0.0, math.inf)


def pplr_cost(size: ModelSize, k: int, usage: Usage) -> Cost:
    """Cost of holding layers 1..k and N; what the middle trains stays on the server.

    Raises:
        UserError: k leaves no layer to the server.

    Example:
        >>> cost = pplr_cost(ModelSize((10,) * 4, 20, (1,) * 4, 0, 8, 2), 1, Usage(100, 10))
        >>> cost.storage, cost.passes, cost.adapters, cost.activations
        (80, 2, 8, 6400)
    """
    middle = size.middle(k)
    whole = fedavg_cost(size)
    storage = whole.storage - sum(size.layers[middle]) * size.bytes
    saved = 2 * sum(size.trained_layers[middle]) * size.bytes
    adapters = whole.adapters - saved
    items = 2 * usage.item_tokens * size.crossing
    return Cost(
        k=k,
        server_layers=middle.stop - middle.start,
        storage=storage,
        share=storage / whole.storage,
        passes=size.depth - (middle.stop - middle.start),
        adapters=adapters,
        # Hidden states up and down, their gradients up and down.
        activations=4 * usage.round_tokens * size.crossing + items,
        items=items,
        validation=adapters / 2 + 2 * usage.validation_tokens * size.crossing,
        query=2 * usage.query_tokens * size.crossing,
        break_even=max(0.0, (saved - items) / (4 * size.crossing)),
    )


def costs(size: ModelSize, usage: Usage, splits: Sequence[int] | None = None) -> list[Cost]:
    """FedAvg first, then PPLR for every k.

    Args:
        size: of the backbone.
        usage: of a client.
        splits: values of k; by default all that leave a middle.

    Raises:
        UserError: one of them leaves none.
    """
    chosen = size.splits if splits is None else splits
    return [fedavg_cost(size), *(pplr_cost(size, k, usage) for k in chosen)]


def verdict(table: Sequence[Cost]) -> str:
    """Say whether PPLR sends more than FedAvg; `table` as `costs` gives it."""
    whole, split = table[0], table[1:]
    if not split:
        return (
            f"A model of {whole.passes} layers cannot be split: PPLR needs at least 3, the first, "
            "the last, and one for the server."
        )
    more = [cost for cost in split if cost.round > whole.round]
    if not more:
        return "PPLR sends less than FedAvg at every k shown." + _validated(whole, split)
    factors = sorted(cost.round / whole.round for cost in more)
    least, most = _factor(factors[0]), _factor(factors[-1])
    span = least if least == most else f"{least} to {most}"
    return f"PPLR sends MORE than FedAvg {_where(more, split)}: {span} times as much. {_why(more)}"


def _why(more: Sequence[Cost]) -> str:
    if any(cost.break_even for cost in more):
        return (
            "Hidden states cost more than the adapters of the middle save, unless a client reads "
            "fewer tokens in a round than the break-even."
        )
    return (
        "The items' texts alone, embedded anew in every round, cost more than the adapters of the "
        "middle save, so that there is no break-even."
    )


def _validated(whole: Cost, split: Sequence[Cost]) -> str:
    """Tell where only the validation makes it more."""
    total = whole.round + whole.validation
    more = [cost for cost in split if cost.round + cost.validation > total]
    if not more:
        return ""
    return f" With a validation after every round it sends MORE {_where(more, split)}."


def _where(some: Sequence[Cost], all: Sequence[Cost]) -> str:
    return "at every k shown" if len(some) == len(all) else f"at k = {_listed(some)}"


def spread_of_splits(size: ModelSize, most: int = 12) -> list[int]:
    """Values of k for a table: all, or about ``most`` from the smallest to the largest.

    Example:
        >>> spread_of_splits(ModelSize((1,) * 34, 1, (1,) * 34, 0, 1, 2), most=4)
        [1, 11, 22, 32]
    """
    splits = size.splits
    if len(splits) <= most:
        return list(splits)
    step = (len(splits) - 1) / (most - 1)
    return [splits[math.floor(step * place + 0.5)] for place in range(most)]


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _listed(table: Sequence[Cost]) -> str:
    return ", ".join(str(cost.k) for cost in table)
