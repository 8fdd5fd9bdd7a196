"""FedRECON: the clients share the base of a model; heads are reconstructed and never travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData, batch_counts, in_memory
from coterie.core.data.samples.split_samples import SplitSamples, divide, share_counts
from coterie.core.errors import UserError
from coterie.core.local_training.losses import AsBatch
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import (
    GlobalModel,
    ModelUpdate,
    OwnModel,
    QualityReport,
)
from coterie.core.methods.kit.model_server import ServerModel
from coterie.core.methods.kit.parts import matching, part, without
from coterie.core.methods.kit.training import LocalTraining, changes, same_for_all
from coterie.core.methods.kit.uploads import WeightedSum, changed, counted, measured
from coterie.core.methods.settings.any_module import FedReconSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Down, Step, carries
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


def reconstruct(
    local: LocalTraining, base: Params, head: Params, support: SampleData, key: Key
) -> Params:
    """The algorithm R of FedRECON (Singhal et al., NeurIPS 2021, Algorithm 1): gradient descent.

    Args:
        local: training by the settings of FedRECON.
        base: of C clients, each ``(C, ...)``; it stays.
        head: to start from, each ``(C, ...)``.
        support: the clients' samples; without any, the head stays what it was.
        key: the clients' keys, ``(C,)``.
    """
    settings = cast(FedReconSettings, local.settings)
    batches = local.batches(support, key, settings.recon_epochs)
    return local.train(head, batches, lr=settings.recon_lr, fixed=base).params


def check_base(module: nn.Module, patterns: Sequence[str]) -> None:
    """Check that FedRECON can train a module.

    Args:
        module: any.
        patterns: of the names of its head's parameters.

    Raises:
        UserError: it has no such parameters to train, or no others.
    """
    names = [name for name, value in module.named_parameters() if value.requires_grad]
    try:
        head = matching(names, patterns)
    except UserError as error:
        raise UserError(
            f"FedRECON reconstructs a head in every client, and {error}: name the head of "
            f"{type(module).__name__} by its parameters, such as head=('{_last(names)}',)"
        ) from None
    if len(head) == len(names):
        raise UserError(
            f"FedRECON shares what is no head, and beside its head {type(module).__name__} has no "
            "parameters to train: choose another model or another method"
        )


def _last(names: Sequence[str]) -> str:
    layer = names[-1].rpartition(".")[0] if names else ""
    return f"{layer}.*" if layer else [*names, "head.*"][-1]


def parted(params: Params, patterns: Sequence[str] = ("head.*",)) -> tuple[Params, Params]:
    """Part parameters into base and head.

    Args:
        params: by name.
        patterns: of the names of the head's.

    Example:
        >>> parted({"body.w": 1, "head.w": 2})
        ({'body.w': 1}, {'head.w': 2})
    """
    head = matching(params, patterns)
    return without(params, head), part(params, head)


@dataclass(frozen=True)
class MeasuredBase(Down):
    """The server's base, to be measured."""

    weights: Params = carries("base and initial head by name")
    head: Params = carries("head reconstructed on the server's own samples, empty without any")


@dataclass(frozen=True)
class BaseUpdate(ModelUpdate):
    """What training on the query set changed in the base; stacked over C clients."""

    change: Params = changed("the base's parameters, g_k - g")  # each (C, ...)
    samples: Tensor = counted("number of query samples")  # (C,) int64
    loss: Tensor = measured("mean loss on the query set")  # (C,)


UPDATE = Step("update", GlobalModel, BaseUpdate)
EVALUATE = Step("evaluate", MeasuredBase, QualityReport)


class FedReconClient(ModelClient[OwnModel]):
    """Client of FedRECON (Singhal et al., NeurIPS 2021, Algorithm 1); it keeps nothing.

    In every round its samples are divided anew into support and query. The head is reconstructed on
    the support from the initial one, which the server sends along, then the base is trained on the
    query. Its personal model is made when it is measured: the server's base and the head
    reconstructed on all its training samples. A single sample is support, so its client weighs 0.

    Raises:
        UserError: the module has no head of that name, or nothing beside it to train.
    """

    settings: FedReconSettings

    def __init__(
        self, module: nn.Module, settings: FedReconSettings, as_batch: AsBatch | None = None
    ) -> None:
        super().__init__(module, settings, as_batch)
        check_base(module, settings.head)

    def newcomers(self, n_clients: int) -> OwnModel:
        """Private state: nothing."""
        return OwnModel({}, torch.zeros(n_clients, dtype=torch.int64))

    def work(self, data: SplitSamples) -> Tensor:
        """Local steps of each client, ``(C,)``."""
        support, size = self._support(data.train), self.settings.batch_size
        rebuilt = self.settings.recon_epochs * batch_counts(support, size)
        return rebuilt + self.settings.epochs * batch_counts(data.lengths - support, size)

    @UPDATE
    def update(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[BaseUpdate, None]:
        """Reconstruct the head on the support set, then train the base on the query set."""
        base, initial = parted(same_for_all(down.weights, len(data)), self.settings.head)
        train = in_memory(data.train)
        parts = divide(train, self._support(train), key.fold("support"))
        support, query = (part.part_of(train) for part in parts)
        head = reconstruct(self.local, base, initial, support, key.fold("reconstruct"))
        fitted = self.local.train(base, self.local.batches(query, key), fixed=head)
        return BaseUpdate(changes(fitted.params, down.weights), query.lengths, fitted.loss), None

    @EVALUATE
    def evaluate(
        self, down: MeasuredBase, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[QualityReport, None]:
        """Measure the base with its own head and, if there is one, with the server's.

        A client without samples to reconstruct a head on has the server's.
        """
        base, initial = parted(same_for_all(down.weights, len(data)), self.settings.head)
        head = reconstruct(self.local, base, initial, data.train, key.fold("reconstruct"))
        models = {"personal": {**base, **head}}
        if down.head:
            shared = {**down.weights, **down.head}
            models["global"] = same_for_all(shared, 1)
            others = same_for_all(shared, len(data))
            models["personal"] = tree.where_rows(data.lengths > 0, models["personal"], others)
        return self.measured(models, data), None

    def _support(self, data: SampleData) -> Tensor:
        """Sizes of the support sets, ``(C,)``; two samples or more leave one for the query."""
        most = (data.lengths - 1).clamp(min=1).minimum(data.lengths)
        return share_counts(data.lengths, self.settings.support).minimum(most)


class FedReconServer(FedAvgServer):
    """Server of FedRECON (Singhal et al., NeurIPS 2021, Algorithm 1), with averaging as S.

    Its model is a base and the initial head, which never changes. There is no global head, so to
    measure its model the server reconstructs one on its own validation samples: `server` and
    `global` accuracies are those of the base with that head. ``eval/server_…`` is thus measured on
    the samples that the head was fitted to; ``test/server_…`` is not. Without validation samples
    neither is measured.
    """

    settings: FedReconSettings

    def initial(self, key: Key) -> Params:
        """Draw the initial parameters.

        Raises:
            UserError: the module has no head of that name, or nothing beside it to train.
        """
        check_base(self.module, self.settings.head)
        return super().initial(key)

    def moved(self, weights: Params, total: WeightedSum[ModelUpdate]) -> Params:
        """The next base: g + η_s sum_k n_k (g_k - g) / sum_k n_k; n_k counts query samples."""
        change, lr = total.sums.change, self.settings.server_lr
        return weights | {name: weights[name] + lr * change[name] / total.weight for name in change}

    def test(self, state: ServerModel, cohort: Cohort) -> None:
        """Enter the accuracies and losses, with a head reconstructed where one is needed."""
        head = self.head(state.weights)
        if head:
            self.test_server({**state.weights, **head}, cohort)
        self.note_clients(cohort.ask(EVALUATE, MeasuredBase(state.weights, head)), cohort)

    def head(self, weights: Params) -> Params:
        """Reconstruct a head on the server's validation samples; empty without any."""
        count = len(next(iter(self.samples.valid.values()), ()))
        if not count:
            return {}
        own = SampleData(torch.zeros(1).long(), self.samples.valid, torch.tensor([0, count]))
        base, initial = parted(same_for_all(weights, 1), self.settings.head)
        # Measuring must change no draw of the run, and the same model always measures the same.
        local = LocalTraining(self.module, self.settings, self._as_batch)
        found = reconstruct(local, base, initial, own, Key.from_seed(0).fold(own.ids))
        return {name: value[0] for name, value in found.items()}
