"""FedPerGNN: a graph network on each user's own star graph (Wu et al., Nat. Commun. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.interactions.splits import UserRows
from coterie.core.methods.kit.uploads import measured
from coterie.core.methods.ranking.client import (
    RankingClient,
    Samples,
    UserState,
    draw_samples,
    known_items,
    products,
)
from coterie.core.methods.ranking.server import RankingServer, RankingState
from coterie.core.methods.ranking.user_graphs import (
    Announcement,
    Gradients,
    Neighbours,
    Network,
    Stars,
    ThirdParty,
    choose_pseudo_items,
    gradients,
    item_tokens,
    item_vectors,
    privatise,
    pseudo_factors,
    represent,
    to_rows,
)
from coterie.core.methods.settings.ranking import FedPerGNNSettings
from coterie.core.metrics.ranking_report import RankingReport, Split
from coterie.core.protocol.client import Factors
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.protocol.messages import Aligned, Down, Reveals, Step, Up, carries, leaves
from coterie.core.protocol.uploads import Fold, Like, weighted_sum
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import Rows, TouchedRows
from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class PublicNetwork(Down):
    """The item table and the network."""

    items: Tensor = carries("item table")  # (n_items, d)
    weight: Tensor = carries("weights W of the graph network")  # (d, d)
    attention: Tensor = carries("attention of the graph network")  # (2, d)
    split: Split = carries("what is evaluated, valid or test", default="valid")


@dataclass(frozen=True)
class NoisyGradients(Up):
    """A client's gradients, clipped and noisy, real rows among made-up ones."""

    items: Rows = leaves(
        "noisy gradients of the trained item rows and of made-up ones",
        reveals=Reveals.ITEMS_TOUCHED,
        depends_on={"params"},
        expected=Like("items"),
    )
    weight: Tensor = leaves(  # (C, d, d)
        "noisy gradient of W",
        reveals=Reveals.PARAMETERS,
        depends_on={"params"},
        expected=Like("weight"),
    )
    attention: Tensor = leaves(  # (C, 2, d)
        "noisy gradient of the attention",
        reveals=Reveals.PARAMETERS,
        depends_on={"params"},
        expected=Like("attention"),
    )
    loss: Tensor = measured("mean training loss", {"params"})  # (C,)


UPDATE = Step("update", PublicNetwork, NoisyGradients)
ANNOUNCE = Step("announce", None, Announcement)
MEET = Step("meet", Neighbours, None)
EVALUATE = Step("evaluate", PublicNetwork, RankingReport)
REMEMBER = Step("remember", PublicNetwork, None)
FOLD_IN = Step("fold_in", PublicNetwork, None)


class FedPerGNNClient(RankingClient):
    """A user: a private vector, anonymous neighbours, and a star graph of its items.

    Beside the arguments of `RankingClient` it takes a ``secret`` that the clients share, unknown to
    the server and the third party.
    """

    def __init__(
        self,
        settings: FedPerGNNSettings,
        n_items: int,
        lengths: Sequence[int],
        secret: CommonSecret,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(settings, n_items, lengths, dtype)
        self.secret: CommonSecret = secret

    def start(self, key: Key) -> dict[str, Tensor]:
        """Draw e_u; there are no neighbours yet."""
        n_clients, dim = key.state.numel(), self.settings.dim
        neighbours = (n_clients, self.settings.neighbours)
        return {
            "user": self.settings.init_std * key.normal(dim, dtype=self.dtype),
            "neighbours": torch.zeros(*neighbours, dim, dtype=self.dtype),
            "known": torch.zeros(*neighbours, dtype=torch.bool),
            "graph": torch.zeros(n_clients, dim, dtype=self.dtype),
        }

    def footprint(self, data: UserRows, down: Any) -> Tensor:
        """Bytes of a user's tables of scores and factors, and of the rows it uploads."""
        settings = self.settings
        trained = data.train.lengths * (1 + settings.negatives) + settings.pseudo_items
        rows = trained.clamp(max=self.n_items) * settings.dim * 4
        return (20 * self.n_items + rows) * self.dtype.itemsize

    @UPDATE
    def update(
        self, down: PublicNetwork, mine: UserState, data: UserRows, key: Key
    ) -> tuple[NoisyGradients, UserState]:
        """Step on e_u, and give the gradients of everything public."""
        samples, found = self._gradients(mine.params, down, data.train, key)
        params = self._moved(mine.params, found)
        loss = found.loss / self.settings.loss_weight
        up = self._hide(found, samples.weight > 0, loss, key)
        return up, replace(mine, params=params)

    @ANNOUNCE
    def announce(
        self, down: None, mine: UserState, data: UserRows, key: Key
    ) -> tuple[Announcement, None]:
        """Tell the third party tokens of one's items, and one's vector."""
        tokens = item_tokens(self.secret, data.train, self.n_items)
        return Announcement(tokens, mine.params["user"].clone()), None

    @MEET
    def meet(
        self, down: Neighbours, mine: UserState, data: UserRows, key: Key
    ) -> tuple[None, UserState]:
        """Receive neighbours; their vectors stay as they are."""
        new = {"neighbours": down.vectors, "known": down.known}
        return None, replace(mine, params=mine.params | new)

    @EVALUATE
    def evaluate(
        self, down: PublicNetwork, mine: UserState, data: UserRows, key: Key
    ) -> tuple[RankingReport, None]:
        """Rank all items the user does not have."""
        return self.ranked(down, mine, data), None

    @REMEMBER
    def remember(
        self, down: PublicNetwork, mine: UserState, data: UserRows, key: Key
    ) -> tuple[None, UserState]:
        """Keep the state of the best round, and what the graph of train items makes of it."""
        return None, replace(mine, best=self._with_graph(mine.params, down, data.train))

    @FOLD_IN
    def fold_in(
        self, down: PublicNetwork, mine: UserState, data: UserRows, key: Key
    ) -> tuple[None, UserState]:
        """Fit e_u of the best round to train and validation items, which join its graph."""
        return None, replace(mine, best=self.fitted(mine.best, down, known_items(data), key))

    def scores(
        self, params: dict[str, Tensor], down: PublicNetwork, history: Ragged | None = None
    ) -> Tensor:
        """Score all items from the graph of a history or, without one, of the last."""
        network = _network(down)
        user = params["graph"] if history is None else self._represent(network, params, history)
        return user @ item_vectors(network).T

    def factors(self, down: PublicNetwork, mine: UserState) -> Factors:
        """Give what the network makes of items, and of a user by its last graph."""
        return products(item_vectors(_network(down)), mine.best["graph"])

    def fitted(
        self, params: dict[str, Tensor], down: PublicNetwork, history: Ragged, key: Key
    ) -> dict[str, Tensor]:
        """Fit e_u to items, with all that is public and the neighbours fixed."""
        for number in range(self.settings.fold_in):
            found = self._gradients(params, down, history, key.fold("fold in", number))[1]
            params = self._moved(params, found)
        return self._with_graph(params, down, history)

    def _gradients(
        self, params: dict[str, Tensor], down: PublicNetwork, items: Ragged, key: Key
    ) -> tuple[Samples, Gradients]:
        """Draw negatives for a user's items; give the gradients, its graph without some edges."""
        settings = self.settings
        samples = draw_samples(
            key.fold("negatives"), items, self.n_items, settings.negatives, self.dtype
        )
        count = samples.weight.sum(1, keepdim=True).clamp_min(1.0)
        weight = samples.weight * (settings.loss_weight / count)
        around = samples.label > 0
        if settings.dropout:
            around &= key.fold("dropout").uniform(self.n_items) >= settings.dropout
        stars = Stars(params["user"], around, params["neighbours"], params["known"])
        return samples, gradients(_network(down), stars, samples.label, weight, settings.loss)

    def _moved(self, params: dict[str, Tensor], found: Gradients) -> dict[str, Tensor]:
        """Step on e_u."""
        return params | {"user": params["user"] - self.settings.lr * found.user}

    def _with_graph(
        self, params: dict[str, Tensor], down: PublicNetwork, history: Ragged
    ) -> dict[str, Tensor]:
        """Keep what the network makes of the graph of some items."""
        graph = self._represent(_network(down), params, history)
        return tree.clone(params) | {"graph": graph}

    def _represent(self, network: Network, params: dict[str, Tensor], history: Ragged) -> Tensor:
        around = history.mask(self.n_items)
        stars = Stars(params["user"], around, params["neighbours"], params["known"])
        return represent(network, stars)

    def _hide(self, found: Gradients, touched: Tensor, loss: Tensor, key: Key) -> NoisyGradients:
        """Add made-up rows, clip, add noise."""
        settings, n_clients = self.settings, touched.shape[0]
        pseudo = choose_pseudo_items(key.fold("pseudo items"), touched, settings.pseudo_items)
        factor = found.factor
        if settings.pseudo_items:
            factor = pseudo_factors(key.fold("pseudo rows"), factor, touched, pseudo)
        rows = to_rows(factor, found.basis, touched | pseudo)
        model = torch.cat([found.weight.flatten(1), found.attention.flatten(1)], dim=1)
        options = (settings.clip, settings.noise)
        items = privatise(
            key.fold("noise on items"), rows.values, rows.index.rows, rows.index.values, *options
        )
        users = torch.arange(n_clients)
        model = privatise(
            key.fold("noise on model"), model, users, torch.zeros_like(users), *options
        )
        size = found.weight[0].numel()
        return NoisyGradients(
            TouchedRows(rows.index, items, rows.n_rows),
            model[:, :size].reshape(found.weight.shape),
            model[:, size:].reshape(found.attention.shape),
            loss,
        )


def _network(down: PublicNetwork) -> Network:
    return Network(down.items, down.weight, down.attention)


@dataclass(frozen=True)
class Released:
    """Gradients summed over the clients.

    Attributes:
        sums: the sums.
        most: coordinates that one client released, at most.
    """

    sums: NoisyGradients
    most: int

    @property
    def loss(self) -> Tensor:
        """Sum of the losses, ``()``."""
        return self.sums.loss


class GradientSum(Fold):
    """Sum gradients over the clients, and note the most coordinates that one of them released."""

    def of(self, up: NoisyGradients) -> Released:
        """Sum the uploads of some clients."""
        model = up.weight[0].numel() + up.attention[0].numel()
        released = int((up.items.touched() * up.items.width + model).max())
        return Released(weighted_sum(up), released)

    def merge(self, total: Released, part: Released) -> Released:
        """Join two groups of clients."""
        sums = tree.map_tensors(torch.add, total.sums, part.sums)
        return Released(sums, max(total.most, part.most))


class FedPerGNNServer(RankingServer[PublicNetwork]):
    """Rounds of gradient descent by the mean of the clients' noisy gradients.

    After the first ones a third party connects the users.
    """

    settings: FedPerGNNSettings
    evaluate, fold_in = EVALUATE, FOLD_IN

    @cached_property
    def third_party(self) -> ThirdParty:
        """Who connects the users."""
        return ThirdParty(self.settings.neighbours)

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
        """Connect the users once, train on a share of them, then validate where it is due."""
        if state.round == self.settings.expand_after and self.settings.neighbours:
            self._expand(cohort)
        return super().round(state, cohort, key)

    def train(self, state: RankingState, cohort: Cohort, key: Key) -> dict[str, Tensor]:
        """θ <- θ - η · mean of the gradients."""
        replies = self.trained(cohort, UPDATE, self.table(state.public), GradientSum())
        if (total := replies.total) is None:
            return state.public
        self._report_privacy(cohort, total.most)
        sums, settings = total.sums, self.settings
        moves = {
            "items": (settings.item_lr, sums.items.sum()),
            "weight": (settings.model_lr, sums.weight),
            "attention": (settings.model_lr, sums.attention),
        }
        return {
            name: state.public[name] - lr * (gradient / len(replies))
            for name, (lr, gradient) in moves.items()
        }

    def table(self, public: dict[str, Tensor], split: Split = "valid") -> PublicNetwork:
        """Send the item table and the network."""
        return PublicNetwork(public["items"], public["weight"], public["attention"], split)

    def keep(self, state: RankingState, cohort: Cohort) -> RankingState:
        """Keep the public part; clients keep their state, with what their graphs make of it."""
        cohort.ask(REMEMBER, self.table(state.public))
        return replace(state, best=state.public)

    def _expand(self, cohort: Cohort) -> None:
        """Carry sealed messages between the clients and the third party."""
        announced = cohort.ask(ANNOUNCE, None)
        if announced.up is None:
            return
        asked = cohort.part(torch.searchsorted(cohort.ids, announced.ids))
        found = self.third_party.match(announced.up)
        asked.ask(MEET, Aligned(announced.ids, found))
        cohort.journal.scalar("fedpergnn/neighbours", found.known.sum(1).double().mean())

    def _report_privacy(self, cohort: Cohort, released: int) -> None:
        """Local privacy of one upload: ε of each coordinate, and of the p of the largest upload.

        It covers values, not which rows are sent.
        """
        clip, noise = self.settings.clip, self.settings.noise
        each = 2 * clip / noise if clip is not None and noise else torch.inf
        cohort.journal.scalar("privacy/epsilon_per_coordinate", each)
        cohort.journal.scalar("privacy/epsilon_per_upload", released * each)
