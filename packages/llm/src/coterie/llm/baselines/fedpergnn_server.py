"""FedPerGNN, the server half: mean gradients, and neighbours through a third party."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.federation.cohort import Cohort, PerClient
from coterie.core.federation.folds import Sum
from coterie.core.tensors.keys import Key
from coterie.llm.baselines.fedpergnn import FedPerGNNClient, NoisyGradients, PublicNetwork
from coterie.llm.baselines.graph_expansion import ThirdParty
from coterie.llm.baselines.ranking_server import RankingServer, RankingState
from coterie.llm.baselines.settings import FedPerGNNSettings


class GradientSum(Sum):
    """Sum gradients over the clients, and note the most coordinates that one of them released."""

    def add(self, total: Any, up: NoisyGradients) -> Any:
        """Add a chunk's uploads."""
        model = up.weight[0].numel() + up.attention[0].numel() if up.weight.shape[0] else 0
        released = up.items.touched() * up.items.width + model
        before = 0 if total is None else total.pop("released")
        total = super().add(total, up)
        return total | {"released": max(before, int(released.max()))}


class FedPerGNNServer(RankingServer):
    """Rounds of gradient descent by the mean of the clients' noisy gradients.

    Args:
        settings: of FedPerGNN.
        n_items: number of items.
        lengths: the k of Recall@k and NDCG@k.
        third_party: connects the users after the first rounds.
        dtype: of all parameters.
    """

    def __init__(
        self,
        settings: FedPerGNNSettings,
        n_items: int,
        lengths: Sequence[int],
        third_party: ThirdParty,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(settings, lengths)
        self.settings, self.n_items, self.dtype = settings, n_items, dtype
        self.third_party = third_party

    def start(self, key: Key) -> dict[str, Tensor]:
        """Draw the item table and the network; W keeps lengths on average."""
        dim, std = self.settings.dim, self.settings.init_std
        items = key.fold("items").fold(torch.arange(self.n_items)).normal(dim, dtype=self.dtype)
        return {
            "items": std * items,
            "weight": dim**-0.5 * key.fold("weight").normal(dim, dim, dtype=self.dtype),
            "attention": std * key.fold("attention").normal(2, dim, dtype=self.dtype),
        }

    def round(self, state: RankingState, cohort: Cohort, key: Key) -> RankingState:
        """Connect the users once, train on a share of them, then validate on all."""
        if state.round == self.settings.expand_after and self.settings.neighbours:
            self._expand(cohort)
        return super().round(state, cohort, key)

    def train(self, state: RankingState, cohort: Cohort, key: Key) -> dict[str, Tensor]:
        """θ <- θ - η · mean of the gradients."""
        replies = cohort.ask("update", self.table(state.public), reduce=GradientSum())
        self.report_training(cohort, replies)
        if replies.total is None:
            return state.public
        self._report_privacy(cohort, replies.total["released"])
        rates = {
            "items": self.settings.item_lr,
            "weight": self.settings.model_lr,
            "attention": self.settings.model_lr,
        }
        return {
            name: value - rates[name] * replies.mean(name) for name, value in state.public.items()
        }

    def table(self, public: dict[str, Tensor], split: str = "valid") -> PublicNetwork:
        """Send the item table and the network."""
        return PublicNetwork(public["items"], public["weight"], public["attention"], split)

    def keep(self, state: RankingState, cohort: Cohort) -> RankingState:
        """Keep the public part; clients keep their state, with what their graphs make of it."""
        cohort.ask("remember", self.table(state.public))
        return replace(state, best=state.public)

    def _expand(self, cohort: Cohort) -> None:
        """Carry sealed messages between the clients and the third party."""
        announced = cohort.ask("announce", None)
        if announced.up is None:
            return
        asked = cohort.part(torch.searchsorted(cohort.ids, announced.ids))
        found = self.third_party.match(announced.up)
        asked.ask("meet", PerClient(found))
        cohort.journal.scalar("fedpergnn/neighbours", found.known.sum(1).double().mean())

    def _report_privacy(self, cohort: Cohort, released: int) -> None:
        """Local privacy of one upload: ε of each coordinate, and of the p of the largest upload.

        It covers values, not which rows are sent.
        """
        clip, noise = self.settings.clip, self.settings.noise
        each = 2 * clip / noise if clip is not None and noise else torch.inf
        cohort.journal.scalar("privacy/epsilon_per_coordinate", each)
        cohort.journal.scalar("privacy/epsilon_per_upload", released * each)


def fedpergnn(
    settings: FedPerGNNSettings,
    n_items: int,
    lengths: Sequence[int],
    secret: Key,
    dtype: torch.dtype = torch.float32,
) -> tuple[FedPerGNNServer, FedPerGNNClient]:
    """Build both halves.

    Args:
        settings: of FedPerGNN.
        n_items: number of items.
        lengths: the k of Recall@k and NDCG@k; the first decides on the best round.
        secret: of the clients, unknown to the servers; makes tokens of items.
        dtype: of all parameters.
    """
    client = FedPerGNNClient(settings, n_items, lengths, secret, dtype)
    third_party = ThirdParty(settings.neighbours)
    return FedPerGNNServer(settings, n_items, lengths, third_party, dtype), client
