"""How often all users together had each item: a sum over organisations that shows no summand.

The bias of the expert beside a backbone (`coterie.llm.backbones.base`) starts from the counts of
the public users. With ``expert.counts`` "everybody" those of the organisations' users are added:
before the first round what their users had by then, before the test what they had since. Every
interaction is in one of the two sums.

A server that follows the protocol learns the two sums. One that says falsely that a client failed
gets a sum over the others too, and with it that client's counts; only noise (``count_noise``)
stands against that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.protocol.client import Client
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.common_secret import CommonSecret, from_fixed, pairwise_masks, to_fixed
from coterie.core.protocol.messages import Down, Form, ListStep, Reveals, Up, carries, leaves
from coterie.core.protocol.uploads import Like
from coterie.core.tensors.keys import Key
from coterie.llm.adapter import Adapter, LocalHead
from coterie.llm.backbones.base import Backbone
from coterie.llm.data.catalogue import Catalogue
from coterie.llm.data.examples import OwnData, Period
from coterie.llm.messages import ClientState
from coterie.llm.settings import Settings

BIAS = "expert.bias"
"""The bias among a backbone's parameters."""


@dataclass(frozen=True)
class CountQuery(Down):
    """Ask for the counts of a period."""

    known: Tensor = carries("counts that are known already")  # (n_items,) int64
    roster: Tensor = carries("the clients of this sum, who share masks")  # (A,) int64
    period: Period = carries("train, or newer: what came since, before the test")


@dataclass(frozen=True)
class ItemCounts(Up):
    """The counts of an organisation, unreadable but in the sum of all."""

    masked: Tensor = leaves(  # (n_items,) int64
        "how often its users had each item, with noise, behind masks that cancel in the sum",
        reveals=Reveals.SEALED,
        expected=Like("known"),
    )


COUNT = ListStep("count", CountQuery, ItemCounts)


class CountsItems(Client[ClientState, OwnData]):
    """What an organisation adds to the sum.

    Attributes:
        settings: with the reading's choices resolved.
        secret: of all organisations, unknown to the server; None where nothing is counted.
    """

    form: ClassVar[Form] = "list"
    settings: Settings

    @COUNT
    def count(
        self, down: CountQuery, mine: ClientState, data: OwnData, key: Key
    ) -> tuple[ItemCounts, None]:
        """Count, and add this client's part of the noise and its masks."""
        assert self.secret is not None
        items, n_items = data.had if down.period == "train" else data.newer, len(down.known)
        counts = torch.bincount(items, minlength=n_items).double()
        deviation = self.settings.expert.count_noise / math.sqrt(len(down.roster))
        noise = deviation * key.fold("count noise").normal(n_items, dtype=torch.float64)
        # Of every roster masks of its own: the difference of two uploads tells nothing either.
        secret = self.secret.key("item counts", down.period, *down.roster.tolist())
        own = torch.tensor([data.id])
        masks = pairwise_masks(secret, down.roster, own, (n_items,), 2 * len(down.roster))
        return ItemCounts(to_fixed(counts + noise) + masks[0]), None


@dataclass(frozen=True)
class CountedBias:
    """The bias in the rows of adapters, and what it follows from.

    Attributes:
        place: of the bias in a row.
        factor: of log(1 + count) in it.
        public: ``(n_items,)`` int64, what the bias of a new adapter counts: the public users'.
        newer: the same of what they had since, before the test.
    """

    place: slice
    factor: float
    public: Tensor
    newer: Tensor

    def known(self, counts: Tensor | None, period: Period) -> Tensor:
        """Add what is public to the counts so far, before a period is asked for."""
        if period == "train" or counts is None:
            return self.public
        return counts + self.newer

    def moved(self, rows: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Let the bias in ``(K, d)`` rows count ``after`` in place of ``before``, ``(n_items,)``.

        What training has added to it stays. Noise may have made a count negative: it is none.

        Example:
            >>> none = torch.zeros(2)
            >>> bias = CountedBias(slice(1, 3), 2.0, none, none)
            >>> after = torch.tensor([-1.0, torch.e - 1])
            >>> bias.moved(torch.ones(1, 3), none, after).tolist()
            [[1.0, 1.0, 3.0]]
        """
        logs = (counts.double().clamp_min(0.0).log1p() for counts in (after, before))
        moved = rows.clone()
        moved[:, self.place] += (self.factor * (next(logs) - next(logs))).to(rows)
        return moved


def counted_bias(
    settings: Settings, adapter: Adapter, items: Catalogue, head: LocalHead | None = None
) -> CountedBias | None:
    """Find the bias in an adapter, if it is to count everybody's interactions; else None.

    Args:
        settings: with the reading's choices resolved.
        adapter: of a client.
        items: with their public counts.
        head: what of the adapter stays with clients; the bias is then found in the rest.
    """
    if settings.expert.of_all != "everybody" or BIAS not in adapter.names:
        return None
    public, newer = (torch.tensor(counts) for counts in (items.popularity, items.newer))
    place = adapter.place(BIAS)
    return CountedBias(
        place if head is None else head.place(place), settings.expert.popularity, public, newer
    )


def kept_head(settings: Settings, backbone: Backbone, adapter: Adapter) -> LocalHead:
    """What of an adapter stays with its client; never the bias that counts everybody's items."""
    if not settings.keeps:
        return LocalHead()
    counted = BIAS if settings.expert.of_all == "everybody" else None
    return LocalHead.of(backbone, adapter, settings.method, counted)


def common_secret(settings: Settings) -> CommonSecret | None:
    """Draw what the organisations share where they count together; None where they do not."""
    return CommonSecret() if counts_together(settings) else None


def counts_together(settings: Settings) -> bool:
    """Whether the organisations' counts are summed."""
    biased = settings.model.expert in ("popularity", "both")
    return biased and settings.expert.of_all == "everybody"


def ask_counts(cohort: Cohort, known: Tensor, period: Period) -> Tensor:
    """Add the counts of all clients that answer, in a period, to those known, ``(n_items,)``.

    Masks of who fails stay in the sum, so that the others are asked anew.

    Args:
        cohort: of at least two clients.
        known: ``(n_items,)`` int64 or float64.
        period: what to count.

    Returns:
        ``(n_items,)`` float64; whole numbers where there is no noise.

    Raises:
        UserError: fewer than two clients answer.
    """
    while True:
        replies = cohort.ask(COUNT, CountQuery(known.long(), cohort.ids, period))
        if not replies.failed:
            masked = torch.stack([up.masked for up in replies.ups.values()]).sum(0)
            return known.double() + from_fixed(masked, torch.float64)
        if replies.ids.numel() < 2:
            raise UserError(
                "fewer than two organisations answered with their counts, and a sum of one would "
                "show them: use --expert.counts public"
            )
        cohort = cohort.part(torch.isin(cohort.ids, replies.ids).nonzero().flatten())
