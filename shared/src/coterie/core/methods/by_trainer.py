"""Any module on samples, trained by any Trainer on the very batches of `central` and `local`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adam, Optimizer

from coterie.core.data.samples.samples import CountedBatches, Samples, in_memory
from coterie.core.data.samples.split_samples import SplitSamples, pooled
from coterie.core.errors import UserError
from coterie.core.local_training.alone import SEED, row_sparse
from coterie.core.local_training.losses import Batch, one_number
from coterie.core.local_training.row_optimizer import RowOptimizer, RowState
from coterie.core.methods.kit.evaluation import MeasuresItself, monitor_of, share_of, shown_names
from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.methods.kit.training import LocalTraining, cut, optimizer_of
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.metrics.clients import mean_of_known
from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.run_keys import RunKeys
from coterie.core.standalone import PREFIX, Standalone
from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key


class RowStepped(Optimizer):
    """One optimizer of dense and of sparse gradients, which torch has not.

    Args:
        params: what is trained.
        rule: how to step.
        lr: learning rate.

    Example:
        >>> from coterie.core.local_training.row_optimizer import RowSGD
        >>> weight = Parameter(torch.ones(2))
        >>> optimizer = RowStepped([weight], RowSGD(), lr=0.5)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.5, 0.5]
    """

    def __init__(self, params: Sequence[Parameter], rule: RowOptimizer, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self._rule = rule

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step; the state of a parameter is its number of steps and its moments."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for value in group["params"]:
                    if value.grad is not None:
                        self._step(value, value.grad, group["lr"])
        return loss

    def _step(self, value: Parameter, grad: Tensor, lr: float) -> None:
        mine, old = self.state[value], {"value": value.detach()[None]}
        if not mine:
            begun = self._rule.begin(old)
            mine["step"] = begun.steps
            mine.update({name: moment["value"] for name, moment in begun.moments.items()})
        moments = {name: {"value": mine[name]} for name in self._rule.moments}
        state = RowState(mine["step"], moments)
        new, state = self._rule.step(old, {"value": grad[None]}, state, lr)
        value.copy_(new["value"][0])
        mine["step"] = state.steps
        mine.update({name: moment["value"] for name, moment in state.moments.items()})


_AT_ONCE = 1000  # samples that are measured together, as runs do


@dataclass(frozen=True)
class Held:
    """Some held-out samples of one holder.

    Attributes:
        who: whose model is measured on them, as the keys of measures have it.
        client: number of the holder.
        samples: fields by name, each ``(B, ...)``.
    """

    who: str
    client: int
    samples: Batch


@dataclass(frozen=True)
class Seen:
    """What is kept of some held-out samples.

    Attributes:
        who: as of `Held`.
        client: as of `Held`.
        count: number of samples.
        values: predictions of the samples, or means over them.
    """

    who: str
    client: int
    count: int
    values: dict[str, Tensor]


class SampleTraining(Standalone[Batch, Held, Seen]):
    """Train a module on the samples of all clients, or of one, as `central` or `local` do.

    Start, batches and draws of the epochs are those of the rounds of these methods.

    Args:
        build: makes the module.
        settings: of the method.
        clients: their samples.
        seed: of the run.
        client: whose samples it is trained and measured on; None = everybody's.
        samples: of the server, on which a model of all samples is measured too.

    Raises:
        UserError: the module cannot be trained, or the client has nothing to train on.
    """

    whose: ClassVar[dict[bool, str]] = {True: "global", False: "personal"}

    def __init__(
        self,
        build: Callable[[], nn.Module],
        settings: FedAvgSettings,
        clients: SplitSamples[Any],
        seed: int,
        client: int | None = None,
        samples: ServerSamples | None = None,
    ) -> None:
        keys, self._all = RunKeys(seed), client is None
        with keys.begin.torch_rng():
            self.network = on_host(build)
        self._settings, self.clip = settings, settings.clip
        self.monitor = monitor_of(self.network)
        if client is None:
            self._clients, train = clients, pooled(in_memory(clients.train))
            self._key = partial(_central_key, keys, train.ids)
            self._server = samples or ServerSamples()
        else:
            self._clients = clients.take((clients.ids == client).nonzero().flatten())
            train, self._server = self._clients.train, ServerSamples()
            self._key = partial(keys.step, train.ids, "train", 0)
        if not int(train.lengths.sum()):
            who = "no client has a sample" if client is None else f"client {client} has no sample"
            raise UserError(f"{who} to train on")
        self._train: Samples = train
        # What rows refuse is refused here, too.
        LocalTraining(self.network, settings, admits_alone=True).batches(train, self._key(1))
        self._drawn: tuple[int, CountedBatches] | None = None
        self.per_epoch = int(self._batches(0).per_epoch[0])
        if any(map(row_sparse, self.network.modules())) and self.clip is not None:
            raise UserError(
                "'clip' does not go with large tables, whose gradients are sparse: leave it out"
            )

    def batch(self, number: int) -> Batch:
        """Cut a batch from those of its round, which may have several epochs."""
        round_, part = divmod(number, self.per_epoch * self._settings.epochs)
        found = self._batches(round_)(part, torch.tensor([0]))
        return {name: values[0] for name, values in found.items()}

    def loss(self, batch: Batch) -> Tensor:
        """The module's loss; what it draws follows from the batch."""
        samples = {name: values for name, values in batch.items() if name != SEED}
        module: Any = self.network
        if SEED not in batch:
            return one_number(module.loss(samples), type(module).__name__)
        with Key(batch[SEED]).torch_rng():
            return one_number(module.loss(samples), type(module).__name__)

    def optimizer(self) -> Optimizer:
        """SGD or Adam; for large tables Adam of the rows that a batch looks up."""
        how, values = self._settings, list(self.trained())
        if any(map(row_sparse, self.network.modules())):
            return RowStepped(values, optimizer_of(how), how.lr)
        if how.optimizer == "sgd":
            return SGD(values, lr=how.lr, weight_decay=how.weight_decay)
        return Adam(values, lr=how.lr, weight_decay=how.weight_decay)

    def questions(self, split: Split) -> Sequence[Held]:
        """Give the held-out samples of each client, and of the server, a thousand at a time."""
        own, server = getattr(self._clients, split), getattr(self._server, split)
        return HeldOut(self.whose[self._all], own, server)

    def outcome(self, question: Held) -> Seen:
        """Keep the module's predictions, or means of loss and accuracy."""
        module: Any = self.network
        count = len(next(iter(question.samples.values())))
        if isinstance(module, MeasuresItself):
            values = module.predictions(question.samples)
        else:
            values = {"loss": module.loss(question.samples).double()}
            if hasattr(module, "correct"):
                share = share_of(lambda _, batch: module.correct(batch), type(module).__name__)
                values["accuracy"] = share({}, question.samples)
        return Seen(question.who, question.client, count, values)

    def measures(self, split: Split, outcomes: Sequence[Seen]) -> dict[str, float]:
        """Average over clients what each one's samples give, as the servers of runs do."""
        holders: dict[tuple[str, int], list[Seen]] = {}
        for one in outcomes:
            holders.setdefault((one.who, one.client), []).append(one)
        found: dict[str, list[Tensor]] = {}
        for (who, _), parts in holders.items():
            for name, value in self._of_holder(parts).items():
                found.setdefault(f"{who}_{name}", []).append(value.double())
        means = {name: mean_of_known(torch.stack(values)) for name, values in found.items()}
        own = isinstance(self.network, MeasuresItself)
        for name in shown_names(self.network) if own or split == "valid" else ():
            of_models = [f"{who}_{name}" for who in self._settings.chosen_by]
            known = [means[model] for model in of_models if model in means]
            if known:
                means[name] = sum(known) / len(known)
        return {f"{PREFIX[split]}/{name}": value for name, value in means.items()}

    def _of_holder(self, parts: Sequence[Seen]) -> dict[str, Tensor]:
        names = parts[0].values
        if isinstance(self.network, MeasuresItself):
            joined = {name: torch.cat([one.values[name] for one in parts]) for name in names}
            return self.network.measures(joined)
        total = sum(one.count for one in parts)
        return {
            name: torch.stack([one.count * one.values[name] for one in parts]).sum() / total
            for name in names
        }

    def _batches(self, round_: int) -> CountedBatches:
        if self._drawn is None or self._drawn[0] != round_:
            key = self._key(round_ + 1)
            self._drawn = round_, cut(self.network, self._settings, self._train, key)
        return self._drawn[1]


class HeldOut(Sequence[Held]):
    """Held-out samples of clients and server, cut when they are asked for.

    Args:
        who: whose model is measured on those of clients.
        clients: of clients.
        server: of the server, fields by name; may be none.
    """

    def __init__(self, who: str, clients: Samples, server: Batch) -> None:
        self._who, self._clients, self._server = who, clients, server
        self._batches = clients.batches(1, _AT_ONCE, None)
        self._places = [
            (place, number)
            for place, count in enumerate(self._batches.per_epoch.tolist())
            for number in range(count)
        ]
        size = len(next(iter(server.values()), ()))
        self._starts = range(0, size, _AT_ONCE)

    def __len__(self) -> int:
        return len(self._places) + len(self._starts)

    def __iter__(self) -> Iterator[Held]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: Any) -> Any:
        if number >= len(self._places):
            start = self._starts[number - len(self._places)]
            part = slice(start, start + _AT_ONCE)
            return Held("server", 0, {name: v[part] for name, v in self._server.items()})
        place, part_number = self._places[number]
        found = self._batches(part_number, torch.tensor([place]))
        samples = {name: values[0] for name, values in found.items()}
        return Held(self._who, int(self._clients.ids[place]), samples)


def _central_key(keys: RunKeys, ids: Tensor, round_: int) -> Key:
    return keys.round(0, round_).fold("central").fold(ids)
