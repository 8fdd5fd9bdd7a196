"""The methods as plain loops: one `nn.Module` and one `torch.optim` optimizer a client, no stacks.

Nothing here knows of stacked parameters, private state or messages. A client's module keeps what is
its own by itself: parameters that are not shared, running statistics, and, in the optimizer beside
it, moments.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from tests.core.methods.labelled_clients import (
    KEY,
    SECRET,
    Run,
    built,
    close,
    key_of,
    run,
    samples_of,
    weights_of,
)
from tests.in_process import cohort_in_process
from torch import Tensor, nn

from coterie.core.data.samples.samples import MiniBatches, SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.methods.bounds import CentralClient, CentralServer, LocalClient, LocalServer
from coterie.core.methods.ditto import DittoClient, DittoServer
from coterie.core.methods.fedamp import FedAMPClient, FedAMPServer
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.fedprox import FedProxClient
from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.methods.settings.any_module import (
    DittoSettings,
    FedAMPSettings,
    FedProxSettings,
    LocalSettings,
)
from coterie.core.protocol.journal import Journal
from coterie.core.tensors.keys import Key

Weights = dict[str, Tensor]
FIRST = torch.tensor([0])
OWN: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.7},
    "ditto": {"lam": 0.6, "personal_epochs": 1, "personal_lr": 0.03},
    "fedamp": {"lam": 0.5, "alpha": 0.8, "sigma": 20.0},
    "local": {},
}
_HALVES: dict[str, tuple[Any, Any, Any]] = {
    "fedavg": (FedAvgServer, FedAvgClient, FedAvgSettings),
    "fedprox": (FedAvgServer, FedProxClient, FedProxSettings),
    "ditto": (DittoServer, DittoClient, DittoSettings),
    "fedamp": (FedAMPServer, FedAMPClient, FedAMPSettings),
    "local": (LocalServer, LocalClient, LocalSettings),
}
FEDERATED = [name for name in OWN if name != "local"]


def halves(name: str, build: Any, samples: ServerSamples | None = None, **options: Any) -> Any:
    """Server and client half of a method, and its settings."""
    server, client, settings = _HALVES[name]
    chosen = settings(**OWN[name] | options)
    return server(build, chosen, samples), client(built(build), chosen), chosen


def central(
    build: Any, train: SampleData, samples: ServerSamples | None = None, **options: Any
) -> Any:
    settings = FedAvgSettings(**options)
    server = CentralServer(build, settings, train, samples)
    return server, CentralClient(built(build), settings), settings


def go_on(made: Run, server: Any, client: Any, data: SplitSamples, number: int, chunk=None) -> None:
    """One more round after those of `run`, on data that may have changed."""
    journal = Journal()
    cohort = cohort_in_process(
        client, data, made.store, SECRET, (0, number), made.ledger, journal, chunk
    )
    made.state = server.round(made.state, cohort, KEY.fold("round", number))
    made.journals.append(journal)


def stored_backwards(server: Any, client: Any, data: SplitSamples, rounds: int) -> Run:
    """Rounds with clients that are stored in the opposite order, under the same ids."""
    made = run(server, client, data, 0)
    turned = data.take(torch.arange(len(data)).flip(0))
    for number in range(1, rounds + 1):
        journal = Journal()
        cohort = cohort_in_process(
            client, turned, made.store, SECRET, (0, number), made.ledger, journal, 3
        )
        cohort = replace(cohort, ids=data.ids)
        made.state = server.round(made.state, cohort, KEY.fold("round", number))
        made.journals.append(journal)
    return made


@dataclass
class Learner:
    """A module with an optimizer, which both live on from round to round."""

    module: nn.Module
    settings: FedAvgSettings
    lr: float
    optimizer: Any = None

    def begin_round(self) -> None:
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        if self.optimizer is None or not self.settings.keep_moments:
            decay = self.settings.weight_decay
            self.optimizer = kinds[self.settings.optimizer](
                self.module.parameters(), lr=self.lr, weight_decay=decay
            )

    def give(self, weights: Weights) -> None:
        """Write parameters in place, so that the optimizer goes on with them."""
        with torch.no_grad():
            named = dict(self.module.named_parameters())
            for name, value in weights.items():
                named[name].copy_(value)

    def train(self, batches: Any, key: Key, pull: Callable[[], Weights] | None = None) -> list:
        """Ordinary training of one module in training mode; draws are seeded step by step."""
        self.begin_round()
        self.module.train()
        free, seen = list(self.module.parameters()), []
        draws = any(isinstance(part, nn.Dropout) for part in self.module.modules())
        for number, batch in enumerate(batches):
            seeded = key.fold("draws").fold(number).torch_rng() if draws else nullcontext()
            self.optimizer.zero_grad()
            with seeded:
                value = self.module.loss(batch)
            value.backward()
            if self.settings.clip is not None:
                torch.nn.utils.clip_grad_norm_(free, self.settings.clip)
            for name, more in (pull() if pull else {}).items():
                self.module.get_parameter(name).grad += more
            self.optimizer.step()
            seen.append(value.item())
        return seen

    def weights(self, names: Any = None) -> Weights:
        found = weights_of(self.module)
        return found if names is None else {name: found[name] for name in names}


@dataclass
class Plain:
    """A federation as a plain loop.

    Attributes:
        name: of the method.
        build: makes the module.
        data: of the clients.
        settings: of the method.
        at_least: samples of a last batch.
        by_place: whether a single batch is shuffled too, as draws differ from place to place.
        learners: of the clients: what they upload of, or their own model in local training.
        personal: Ditto's second models.
        weights: of the server.
        models: FedAMP's w_i.
    """

    name: str
    build: Any
    data: SplitSamples
    settings: Any
    at_least: int = 1
    by_place: bool = False
    learners: list[Learner] = field(default_factory=list)
    personal: list[Learner] = field(default_factory=list)
    models: list[Weights] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings, clients = self.settings, range(len(self.data))
        self.learners = [Learner(built(self.build), settings, settings.lr) for _ in clients]
        lr = getattr(settings, "personal_lr", None) or settings.lr
        self.personal = [Learner(built(self.build), settings, lr) for _ in clients]
        names = list(weights_of(self.learners[0].module))
        patterns = settings.share or ("*",)
        self.shared = [n for n in names if any(fnmatchcase(n, one) for one in patterns)]
        self.weights = self.learners[0].weights(self.shared)
        self.models = [dict(self.weights) for _ in clients]
        self.trained = [0 for _ in clients]

    def rounds(self, count: int, first: int = 1) -> "Plain":
        for number in range(first, first + count):
            getattr(self, {"local": "_local", "fedamp": "_amp"}.get(self.name, "_average"))(number)
            self.trained = [count + 1 for count in self.trained]
        return self

    def _batches(self, c: int, epochs: int, key: Key) -> Any:
        samples = samples_of(self.data.train, c)
        n = len(samples["y"])
        one = SampleData(self.data.ids[c : c + 1], samples, torch.tensor([0, n]))
        batches = MiniBatches(
            one,
            epochs,
            self.settings.batch_size,
            key,
            by_place=self.by_place,
            at_least=self.at_least,
        )
        for number in range(int(batches.steps[0])):
            yield {name: values[0] for name, values in batches(number, FIRST).items()}

    def _train(self, learner: Learner, c: int, key: Key, epochs: int, near: Weights, mu: float):
        def pull() -> Weights:
            now = learner.weights(near)
            return {name: mu * (now[name] - value) for name, value in near.items()}

        seen = learner.train(self._batches(c, epochs, key), key, pull if mu else None)
        self.losses[c] = sum(seen) / len(seen) if seen else 0.0

    def _average(self, number: int) -> None:
        lengths = self.data.lengths.tolist()
        total = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        for c, learner in enumerate(self.learners):
            key = key_of(int(self.data.ids[c]), "update", number)
            own = learner.weights()  # what is not shared, as it was before this round
            learner.give(self.weights)
            mu = self.settings.mu if self.name == "fedprox" else 0.0
            if self.name == "ditto":
                self._train_personal(c, key, own)
            self._train(learner, c, key, self.settings.epochs, self.weights, mu)
            for name, value in learner.weights(self.shared).items():
                total[name] += lengths[c] / sum(lengths) * value
        self.weights = total

    def _train_personal(self, c: int, key: Key, own: Weights) -> None:
        learner, settings = self.personal[c], self.settings
        if not self.trained[c] or not self.data.lengths[c]:
            learner.give({**own, **self.weights})
        epochs = settings.personal_epochs or settings.epochs
        self._train(learner, c, key.fold("personal"), epochs, self.weights, settings.lam)

    def _amp(self, number: int) -> None:
        given, clients = self.settings, range(len(self.data))
        heard = [j for j in clients if self.data.lengths[j] or number == 1]
        clouds = []
        for i in clients:
            others = {}
            for j in heard:
                if j != i:
                    apart = sum(
                        float((self.models[i][n] - self.models[j][n]).square().sum())
                        for n in self.shared
                    )
                    others[j] = given.alpha * math.exp(-apart / given.sigma) / given.sigma
            rest = 1 - sum(others.values())
            assert rest >= given.alpha / given.sigma  # alpha_k is what the settings say
            mixed = {n: rest * value for n, value in self.models[i].items()}
            for j, weight in others.items():
                mixed = {n: v + weight * self.models[j][n] for n, v in mixed.items()}
            clouds.append(mixed)
        for i, learner in enumerate(self.learners):
            learner.give(clouds[i])
            key = key_of(int(self.data.ids[i]), "update", number)
            self._train(learner, i, key, given.epochs, clouds[i], given.lam / given.alpha)
            self.models[i] = learner.weights(self.shared)
        known = [self.models[i] for i in clients if self.data.lengths[i]]
        self.weights = {n: sum(one[n] for one in known) / len(known) for n in self.shared}

    def _local(self, number: int) -> None:
        for c, learner in enumerate(self.learners):
            key = key_of(int(self.data.ids[c]), "train", number)
            self._train(learner, c, key, self.settings.epochs, {}, 0.0)

    def measured(self, which: str, part: str, measure: str) -> float:
        """Mean over clients with samples of a measure in evaluation mode.

        Args:
            which: "global" or "personal".
            part: "valid" or "test".
            measure: "loss" or "correct".
        """
        found = []
        for c, learner in enumerate(self.learners):
            samples = samples_of(getattr(self.data, part), c)
            if not len(samples["y"]):
                continue
            if which == "personal" and self.name == "ditto":
                learner = self.personal[c]
            module = built(self.build)
            module.load_state_dict(learner.module.state_dict())
            module.eval()
            if which == "global":
                module.load_state_dict({**module.state_dict(), **self.weights})
            with torch.no_grad():
                found.append(getattr(module, measure)(samples).double().mean().item())
        return sum(found) / len(found)


def holds(made: Run, plain: Plain, tolerance: float = 1e-12) -> None:
    """What a run left behind is what the plain loop has: weights, own models, statistics."""
    kept = made.private(plain.data.ids)
    if plain.name != "local":
        close(made.state.weights, plain.weights, tolerance)
    for c, learner in enumerate(plain.learners):
        every = learner.weights()
        own = {n: v for n, v in every.items() if n not in plain.shared}
        close({n: v[c] for n, v in kept.own.items()}, own, tolerance)
        close({n: v[c] for n, v in kept.statistics.items()}, statistics(learner.module), tolerance)
        if plain.name == "ditto":
            second = plain.personal[c].module
            close({n: v[c] for n, v in kept.personal.items()}, weights_of(second), tolerance)
            found = {n: v[c] for n, v in kept.personal_statistics.items()}
            close(found, statistics(second), tolerance)
        else:
            mine = learner.weights(plain.shared)
            close({n: v[c] for n, v in kept.personal.items()}, mine, tolerance)
        moments_hold(kept.optimizer, learner, c, tolerance)


def moments_hold(state: Any, learner: Learner, c: int, tolerance: float = 1e-12) -> None:
    """Moments and step count of client ``c`` are those of its own `torch.optim` optimizer."""
    if learner.settings.optimizer == "sgd" or not learner.settings.keep_moments:
        assert state is None
        return
    for name, value in learner.module.named_parameters():
        kept = learner.optimizer.state.get(value, {})
        assert int(state.steps[c]) == int(kept.get("step", 0))
        for moment in ("exp_avg", "exp_avg_sq"):
            expected = kept.get(moment, torch.zeros_like(value))
            found = state.moments[moment][name][c]
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def statistics(module: nn.Module) -> Weights:
    """Its buffers but for constants, which are named ``scale`` in these tests."""
    return {n: v.clone() for n, v in module.named_buffers() if not n.endswith("scale")}


__all__ = ["FEDERATED", "OWN", "Plain", "central", "go_on", "halves", "holds", "run"]
