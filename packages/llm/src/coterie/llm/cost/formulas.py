"""Storage, inference and communication of FedAvg and PPLR over k (PPLR, Table 2).

The printed formulas of Table 2 are lost from the paper's text; these are derived from its prose.
With N layers, a client that holds layers 1..k and N, A_l trained bytes and P_l bytes of a layer,
P_e and A_e those outside the layers, T tokens a round, width h and b bytes a number.

=========  =====================  ================  ============================================
           storage                layers passed     communication in a round
=========  =====================  ================  ============================================
FedAvg     N P_l + P_e            N                 2 (N A_l + A_e)
PPLR       (k + 1) P_l + P_e      k + 1             2 ((k + 1) A_l + A_e) + 4 T h b
=========  =====================  ================  ============================================

A validation after the round costs (k + 1) A_l + A_e (FedAvg: N A_l + A_e) for the mixed adapter and
2 V h b for the V tokens of its users and items. Items are embedded once for each adapter, where a
model embeds all of them (RecFormer, in the first of its two stages): for the validation that
follows a round, and for that before the first one. Masks, a byte a token, and the few numbers of a
report are left out.

Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import UserError

KILO, MEGA = 1e3, 1e6


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

    def middle(self, k: int | None) -> slice:
        """Layers k + 1 to N - 1, the server's; none where k is None.

        Raises:
            UserError: k leaves none.
        """
        if k is None:
            return slice(0, 0)
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
        validation_tokens: V, tokens of a validation, those of items included.
    """

    round_tokens: float = 0
    query_tokens: float = 0
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
    validation: float
    query: float
    break_even: float

    @property
    def round(self) -> float:
        """Bytes up and down in a round."""
        return self.adapters + self.activations

    def shown(self, whole: Cost) -> dict[str, Any]:
        """Give the columns of a table for people; ``whole`` is the cost of FedAvg."""
        return {
            "k": "all (FedAvg)" if self.k is None else str(self.k),
            "on server": self.server_layers,
            "storage MB": self.storage / MEGA,
            "share": f"{self.share:.0%}",
            "layers run": self.passes,
            "adapters MB": self.adapters / MEGA,
            "hidden states MB": self.activations / MEGA,
            "round MB": self.round / MEGA,
            "x FedAvg": self.round / whole.round,
            "validation MB": self.validation / MEGA,
            "query kB": self.query / KILO,
            "break-even tokens": None if self.k is None else int(self.break_even),
        }

    def plain(self) -> dict[str, Any]:
        """Give the columns of a table for programs."""
        return {"method": "fedavg" if self.k is None else "pplr", **vars(self)}


def cost_of(size: ModelSize, k: int | None = None, usage: Usage = Usage()) -> Cost:
    """Cost of holding layers 1..k and N; what the middle trains stays on the server.

    Without k a client holds the whole model and sends all that is trained (FedAvg), which does not
    depend on its usage.

    Raises:
        UserError: k leaves no layer to the server.

    Example:
        >>> size = ModelSize((10,) * 4, 20, (1,) * 4, 0, 8, 2)
        >>> cost = cost_of(size, 1, Usage(100, 10))
        >>> cost.storage, cost.passes, cost.adapters, cost.activations, cost_of(size).adapters
        (80, 2, 8, 6400, 16)
    """
    middle = size.middle(k)
    whole = (sum(size.layers) + size.rest) * size.bytes
    storage = whole - sum(size.layers[middle]) * size.bytes
    saved = 2 * sum(size.trained_layers[middle]) * size.bytes
    adapters = 2 * (sum(size.trained_layers) + size.trained_rest) * size.bytes - saved
    there_and_back = 0 if k is None else 2 * size.crossing
    return Cost(
        k=k,
        server_layers=middle.stop - middle.start,
        storage=storage,
        share=storage / whole,
        passes=size.depth - (middle.stop - middle.start),
        adapters=adapters,
        # Hidden states up and down, their gradients up and down.
        activations=2 * usage.round_tokens * there_and_back,
        validation=adapters // 2 + usage.validation_tokens * there_and_back,
        query=usage.query_tokens * there_and_back,
        break_even=math.inf if k is None else saved / (2 * there_and_back),
    )


def costs(size: ModelSize, usage: Usage, splits: Sequence[int] | None = None) -> list[Cost]:
    """FedAvg first, then PPLR for every k, by default all that leave a middle.

    Raises:
        UserError: one of them leaves none.
    """
    chosen = size.splits if splits is None else splits
    return [cost_of(size, k, usage) for k in (None, *chosen)]


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
        total = whole.round + whole.validation
        more = [cost for cost in split if cost.round + cost.validation > total]
        then = f" With a validation after every round it sends MORE {_where(more, split)}."
        return "PPLR sends less than FedAvg at every k shown." + (then if more else "")
    factors = [cost.round / whole.round for cost in more]
    least, most = (f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in (min(factors), max(factors)))
    span = least if least == most else f"{least} to {most}"
    why = (
        "Hidden states cost more than the adapters of the middle save, unless a client reads fewer "
        "tokens in a round than the break-even."
    )
    return f"PPLR sends MORE than FedAvg {_where(more, split)}: {span} times as much. {why}"


def _where(some: Sequence[Cost], all: Sequence[Cost]) -> str:
    named = ", ".join(str(cost.k) for cost in some)
    return "at every k shown" if len(some) == len(all) else f"at k = {named}"


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
