"""One run of LLM-based federated recommendation: its data, its two halves, its description."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Dropped, Interactions
from coterie.core.data.sources.catalogue import load_filtered
from coterie.core.errors import UserError
from coterie.core.federation.aggregation import aggregation_of
from coterie.core.federation.federation import Federation, bounds
from coterie.core.federation.selection import best_of
from coterie.core.files import sha256
from coterie.core.metrics.clients import imbalance
from coterie.core.privacy.attack import AttackReport
from coterie.core.privacy.build import middleware
from coterie.core.privacy.sum_noise import simulated_secret, sum_noise
from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import Need, RecommendsToUsers
from coterie.core.run.lasting import fixed, located
from coterie.core.run.scoring import Scored
from coterie.core.settings.schema import values_of
from coterie.core.standalone import Standalone
from coterie.core.tensors import tree
from coterie.core.tensors.device import as_written, computing_on
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.algorithm import PPLR
from coterie.llm.backbone import WEIGHTS, halves_of, make_backbone, weights_file
from coterie.llm.backbones.base import Backbone
from coterie.llm.baselines import all_users, attack_users, user_client, user_server
from coterie.llm.by_trainer import BackboneTraining, PairwiseModel
from coterie.llm.client import Organisation
from coterie.llm.data.client_data import PUBLIC, FederatedData, build
from coterie.llm.data.examples import OrganisationData, newest
from coterie.llm.item_counts import common_secret, counted_bias
from coterie.llm.paper import CLIENT_COLUMNS, USER_COLUMNS
from coterie.llm.quality import AT_ONCE, MEASURES
from coterie.llm.ranks_with import frozen_items, own_adapter, own_bias
from coterie.llm.readings import resolve, rounds_in_vain
from coterie.llm.rules import has_words, mean_recall, measure_popularity, title_rule
from coterie.llm.settings import USER_METHODS, Settings

_ACTIVATIONS = 4 * 10  # bytes a unit of width of one token, in a layer that is trained, at least
_TRAINED_BYTES = 16  # of a parameter with its gradient and Adam's two moments


class Experiment(RecommendsToUsers[Settings]):
    """Build everything that `coterie train pplr` runs.

    Args:
        settings: as the user gave them; the reading's choices are filled in.
    """

    paper = "pplr"

    def __init__(self, settings: Settings) -> None:
        super().__init__(resolve(settings))

    @cached_property
    def data(self) -> FederatedData:
        """The interactions, split by time and shared out among clients."""
        how = self.settings.data
        return build(load_filtered(how), how, Key.from_seed(self.settings.seed).fold("data"))

    @cached_property
    def clients(self) -> OrganisationData:
        """What the clients read; in the method `central` the first one has everybody's examples."""
        clients = self.data.clients
        if not any(map(len, clients.train)):
            raise UserError("no client has a training example: use more data or fewer public users")
        if not any(map(len, clients.valid)):
            raise UserError(
                "no client has a user to validate on, so no round could be called the best: "
                "use more data or fewer public users"
            )
        if self.settings.method != "central":
            return clients
        none = clients.train[0].take(torch.arange(0))
        pooled = reduce(tree.concatenate, clients.train)
        return replace(clients, train=[pooled] + [none] * (len(clients) - 1))

    @property
    def interactions(self) -> Interactions:
        """The filtered interactions."""
        return self.data.interactions

    @cached_property
    def backbone(self) -> Backbone:
        """The frozen network that all clients share, with the adapter they start from."""
        data = self.data  # made on the CPU, as all data are
        with as_written(), computing_on(self.device):
            return make_backbone(self.settings, data, self._cache)

    @property
    def _cache(self) -> Path:
        return self.settings.run.folder / "pplr" / "backbones"

    def public(self) -> dict[str, Any]:
        """Give the catalogue, and the digest of the backbone."""
        found: dict[str, Any] = {"items": asdict(self.data.catalogue)}
        if self.of_users:
            return found
        found |= {n: one for n, one in self.backbone.constants().items() if n == "vectors"}
        if self.settings.model.is_given:
            return found | {"backbone": self.backbone.weights}
        files = self.public_files().values()
        return found | {"backbone": "".join(sha256(path) for path in files)}

    def public_files(self) -> dict[str, Path]:
        """Give the backbone, which every client and the server holds."""
        if self.of_users or self.settings.model.is_given:
            return {}
        assert self.backbone is not None  # pre-trained by now
        return {WEIGHTS: weights_file(self.settings, self.data, self._cache)}

    def client_files(self, folder: Path, ids: Tensor) -> None:
        """Write the clients' tokens for the split server, where there is one."""
        split = self.settings.split
        if split.server is None:
            return
        from coterie.llm.split.remote.channel import secret_of  # grpc is heavy
        from coterie.llm.split.remote.tokens import OWN_TOKENS, client_token, write_tokens

        secret = secret_of(split)
        own = {client: client_token(secret, client) for client in ids.tolist()}
        write_tokens(folder / OWN_TOKENS, own)

    @property
    def blocks(self) -> list[OrganisationData]:
        """The organisations' data: there is one block."""
        return [self.clients]

    def standalone(self, client: int | None, network: str | None) -> Standalone[Any, Any, Any]:
        """Give the backbone, or MF or LightGCN, on the data of all organisations, or of one."""
        if network is not None:
            users = all_users(self.data)
            if client is not None:
                theirs = self.data.client_of[users.ids] == client
                users = users.take(theirs.nonzero().flatten())
            return PairwiseModel(network, self.settings, users, self.data.n_items)
        data = self.clients
        place = 0 if client is None else client  # in `central` the first one has everything
        chosen = slice(None) if client is None else slice(client, client + 1)
        held = data.valid[chosen], data.test[chosen]
        return BackboneTraining(self.settings, self.backbone, place, data.train[place], *held)

    def left_out(self) -> list[Dropped]:
        """Count what filters left out, repeated items, and rows of users known too late."""
        return [*self.interactions.dropped, *self.data.left_out()]

    def describe_data(self) -> list[dict[str, Any]]:
        """Count users, examples and targets of every client, and of all together."""
        rows: list[dict[str, Any]] = list(self.data.describe_clients())
        total = {name: sum(row[name] for row in rows) for name in rows[0]}
        return [*rows, total | {"client": "all"}]

    def needs(self) -> list[Need]:
        """Estimate the backbone, or the vectors of methods without one, and a round's training."""
        settings = self.settings
        if self.of_users:
            return self._needs_of_users()
        found = [Need("local training", ("train.epochs",), steps=settings.train.epochs)]
        if settings.model.is_given:
            return found  # of a size that is not chosen here
        model, counts = settings.model, [len(part) for part in self.clients.train]
        examples, batch = sum(counts), min(settings.train.batch_size, max(counts))
        layers = 12 * model.layers * model.width**2
        adapters = 8 * settings.lora.rank * model.width * model.layers
        return [
            *found,
            Need(
                "the backbone",
                ("model.width", "model.layers"),
                memory=_TRAINED_BYTES * (layers + self.data.n_items * model.width),
                operations=6 * examples * layers * settings.train.epochs,
            ),
            Need(
                "a batch",
                ("train.batch_size", "model.width"),
                memory=_ACTIVATIONS * batch * model.width * model.layers,
            ),
            Need("the adapter", ("lora.rank",), adapters if model.trained == "lora" else 0),
        ]

    def _needs_of_users(self) -> list[Need]:
        method, rows = self.settings.method, self.interactions.n_users + self.data.n_items
        own = getattr(self.settings, method)
        key, numbers = ("bits", own.bits // 32) if method == "lightfr" else ("dim", own.dim)
        samples = len(self.interactions) * own.negatives
        return [
            Need("the vectors of users and items", (f"{method}.{key}",), memory=4 * rows * numbers),
            Need("the local samples", (f"{method}.negatives",), operations=64 * samples),
        ]

    def elsewhere(self) -> str:
        """Say whose layers are behind a server of their own."""
        server = self.settings.split.server
        return "" if server is None else f"the middle layers are behind split.server {server}"

    def federation(self) -> Federation:
        """Build both halves."""
        settings = self.settings
        if settings.split.server is not None:  # learn at once, before minutes of building
            from coterie.llm.split.remote.channel import answers, secret_of  # grpc is heavy

            secret_of(settings.split)
            answers(settings.split)
        server, client, data, more = self._users() if self.of_users else self._organisations()
        return Federation(
            server=server,
            client=client,
            blocks=[data],
            seed=settings.seed,
            workers=settings.engine.workers,
            device=self.device,
            middleware=middleware(settings.privacy, client.steps()),
            bounds=bounds(settings.engine),
            aggregation=aggregation_of(settings.aggregate),
            noise=sum_noise(settings.privacy, simulated_secret(fixed(values_of(settings)))),
            secret=settings.aggregate.secret,
            monitor=server.monitor,
            settings=values_of(located(settings)),
            origin=self.origin,
            **more,
        )

    def _organisations(self) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Make server and client; give data, rounds and columns too."""
        settings, data, backbone = self.settings, self.clients, self.backbone
        with computing_on(self.device):
            halves = halves_of(backbone, settings)
            channel, secret = halves.channel if halves else None, common_secret(settings)
            client = Organisation(settings, backbone, channel, secret)
            start = client.head.shared(client.start)
            bias = counted_bias(settings, client.adapter, self.data.catalogue, client.head)
            alike = backbone.constants()
            server = PPLR(settings, settings.data.clients, start, halves, bias, alike)
        rounds = settings.rounds * (settings.train.stages or 1)
        return server, client, data, {"rounds": rounds, "client_columns": CLIENT_COLUMNS}

    def _users(self) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Do the same for users as clients.

        Public users take part in training, since language models are pre-trained on them, and are
        not measured.
        """
        settings, data, n_items = self.settings, all_users(self.data), self.data.n_items
        secret = CommonSecret()
        with computing_on(self.device):
            server, client = user_server(settings, n_items), user_client(settings, n_items, secret)
        rounds, chunk = getattr(settings, settings.method).rounds, settings.engine.chunk
        return server, client, data, dict(rounds=rounds, chunk=chunk, client_columns=USER_COLUMNS)

    def attack(self, module: FederatedRun, scales: Sequence[float]) -> dict[float, AttackReport]:
        """Attack one upload of item rows of every user, behind several Laplace scales.

        Raises:
            UserError: no item rows leave a client, or not in a form that can be attacked.
        """
        if self.of_users:
            return attack_users(module, self.settings, scales)
        raise UserError(
            f"no item rows leave a client of --method {self.settings.method}, an organisation: "
            "`coterie llm attack` attacks the hidden states that leave a split model"
        )

    def final_metrics(self, module: FederatedRun) -> dict[str, float]:
        """Give the test of the best round, and popularity's on the same users."""
        found = measure_popularity(self.data, "test")
        inequality = imbalance(self.of_clients(module)["recall@10"])
        return dict(module.results) | {
            "test/imbalance": inequality,
            **{
                f"test/popularity/{name}": float(torch.cat([one[name] for one in found]).mean())
                for name in MEASURES
            },
        }

    def of_clients(self, module: FederatedRun) -> dict[str, Tensor]:
        """Give the test of every organisation by name, ``(K,)`` each; NaN without a user in it."""
        results = module.client_results
        return {name: self.means_of_clients(*results[f"test/{name}"]) for name in MEASURES}

    def means_of_clients(self, ids: Tensor, values: Tensor) -> Tensor:
        """Give what clients measured by organisation, ``(K,)`` float64; NaN where nobody did.

        Where users are clients, this is the mean over the users of each organisation; ``ids`` and
        ``values`` are ``(n,)``.
        """
        return self.data.means(self.data.client_of[ids] if self.of_users else ids, values)

    @property
    def of_users(self) -> bool:
        """Whether every user is a client, as in the methods without a language model."""
        return self.settings.method in USER_METHODS

    def client_table(self, module: FederatedRun) -> list[dict[str, Any]]:
        """Give the test of every client."""
        users = [len(queries) for queries in self.data.clients.test]
        rows = [{"client": client, "test_users": count} for client, count in enumerate(users)]
        for name, values in self.of_clients(module).items():
            for row, value in zip(rows, values.tolist(), strict=True):
                row[name] = value
        return rows

    def notes(self, module: FederatedRun) -> list[str]:
        """Tell of idle clients, of histories that were cut, and of rounds set in vain."""
        found = rounds_in_vain(self.settings)
        idle = self.data.idle_clients()
        if idle and not self.of_users:
            them = ", ".join(map(str, idle))
            found.append(f"nothing to train on: client {them}; they receive and teach nobody")
        cut = 0 if self.of_users else self.backbone.cut
        if cut:
            found.append(
                f"{cut:,} histories read in this run were longer than 'model.context' "
                f"{self.settings.model.context} and lost their oldest items"
            )
        return [*found, *self._better(module)]

    def _better(self, module: FederatedRun) -> list[str]:
        """Say, if validation does, that words of the items alone find more than the run."""
        best = best_of(module.history, PPLR.monitor)
        if self.of_users or self.settings.model.expert != "none" or not best.measured:
            return []
        if not has_words(self.data.catalogue):
            return []
        rule = title_rule(self.data)
        if mean_recall(rule.valid) <= best.score:
            return []
        words = " and ".join(rule.words)
        return [
            f"on validation, {words} and popularity alone, without any training, find more "
            f"(recall@10 {mean_recall(rule.test):.4f} on the test): --variant best has the model "
            "learn beside them"
        ]

    def score_users(self, module: FederatedRun, users: Tensor) -> Iterator[Scored]:
        """Score all items for users, each by the adapter of its organisation.

        Who belongs to no organisation has no scores.
        """
        clients = self.data.client_of[users]
        for place in (clients < 0).nonzero():
            who = "public" if clients[place] == PUBLIC else "new: it has nothing before the test"
            yield place, UserError(f"the user belongs to no client, it is {who}")
        kept = (clients >= 0).nonzero().flatten()
        if self.of_users:
            for some, scores in super().score_users(module, users[kept]):
                yield kept[some], scores
            return
        for client in clients[kept].unique().tolist():
            for places in (clients == client).nonzero().flatten().split(AT_ONCE):
                history = newest(self._before_test.take(users[places]), self._longest)
                yield places, self._score(module, client, history)

    def scores_alike(self, module: FederatedRun) -> bool:
        """No language model's are: more rows at once round differently."""
        return self.of_users and super().scores_alike(module)

    @cached_property
    def _before_test(self) -> Ragged:
        return self.data.split.before_test()

    @property
    def _longest(self) -> int:
        return self.settings.data.max_history

    def scores_for_newcomer(self, module: FederatedRun, items: Tensor) -> Tensor:
        """Score all items for someone new, ``(1, n_items)``, by the largest client's adapter."""
        if self.of_users:
            return super().scores_for_newcomer(module, items)
        history = Ragged.from_lists([items.tolist()])
        return self._score(module, 0, newest(history, self._longest))

    def _score(self, module: FederatedRun, client: int, history: Ragged) -> Tensor:
        organisation, server = module.federation.client, module.federation.server
        assert isinstance(organisation, Organisation)
        assert isinstance(server, PPLR)
        row = server.served(module.server_state, client)
        row = own_adapter(module, self.clients[client], row)
        own = own_bias(module, self.clients[client])
        return organisation.score(client, row, history, frozen_items(module, client), own)
