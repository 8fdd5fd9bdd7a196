"""Fed-ROD: a generic predictor trained by a balanced loss, and a personal head a client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.data.samples.samples import SampleData, Samples, in_memory
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.local_training.fit import fit
from coterie.core.local_training.gradients import Grads, clipped, multiplied_out
from coterie.core.local_training.losses import AsBatch, Batch, Slope, masked
from coterie.core.local_training.row_optimizer import Params, RowSGD, RowState
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import GlobalModel, ModelUpdate, OwnModel
from coterie.core.methods.kit.parts import HEAD, matching, part, with_head, without
from coterie.core.methods.kit.training import changes, same_for_all
from coterie.core.methods.kit.uploads import changed, measured
from coterie.core.methods.settings.any_module import FedRODSettings
from coterie.core.protocol.messages import Step
from coterie.core.tensors.keys import Key

_OWN, _PRIOR = "personal.", "prior"  # before the names of the personal head; γ log N_{m,c}


@dataclass(frozen=True)
class FedRODModel(OwnModel):
    """What a client of Fed-ROD keeps.

    Attributes:
        head: φ_m, parameters of its personal head by the names of the generic one's, each
            ``(C, ...)``.
    """

    head: Params


@dataclass(frozen=True)
class FedRODUpdate(ModelUpdate):
    """A `ModelUpdate` whose loss is that of both predictors."""

    change: Params = changed("body and generic head, w_k - w")  # each (C, ...)
    loss: Tensor = measured("mean training loss, generic plus personal", {"head"})  # (C,)


UPDATE = Step("update", GlobalModel, FedRODUpdate)


class FedRODClient(ModelClient[FedRODModel]):
    """Client of Fed-ROD with linear personal heads (Chen and Chao, ICLR 2022, Algorithm 1).

    Body θ and generic head ψ are trained by the balanced softmax, the personal head φ_m by the
    cross-entropy of the sum of both heads' scores, in which θ and ψ are constants. Both heads are
    linear on the same features, so the personal model is the module with the head ψ + φ_m. Personal
    heads start at zero. Clipping shortens the gradients of both predictors apart, else the upload
    would depend on the personal head.

    Raises:
        UserError: the module is no `coterie.core.models.classifier.Classifier`.
    """

    settings: FedRODSettings

    def __init__(
        self, module: nn.Module, settings: FedRODSettings, as_batch: AsBatch | None = None
    ) -> None:
        super().__init__(module, settings, as_batch)
        self.classifier = with_head(module)
        self._heads = matching(self._form, [HEAD + "*"])
        self._optimizer = _ClippedApart(weight_decay=settings.weight_decay, limit=settings.clip)

    def newcomers(self, n_clients: int) -> FedRODModel:
        """Private state before the first round: a personal head of zeros."""
        models = self.zeros(n_clients)
        heads = {name: models[name].clone() for name in self._heads}
        kept = models if self.settings.keep_models else {}
        return FedRODModel(kept, torch.zeros(n_clients, dtype=torch.int64), heads)

    @UPDATE
    def update(
        self, down: GlobalModel, mine: FedRODModel, data: SplitSamples, key: Key
    ) -> tuple[FedRODUpdate, FedRODModel]:
        """Train both predictors for E epochs; upload what changed in the generic one."""
        own = {_OWN + name: value for name, value in mine.head.items()}
        batches = self.local.batches(data.train, key)
        fitted = fit(
            masked(self.loss),
            {**same_for_all(down.weights, len(data)), **own},
            batches,
            self._optimizer,
            self.settings.lr,
            batches.steps,
            slope=self._slope,
            fixed={_PRIOR: self._prior(data.train)},
        )
        generic = part(fitted.params, down.weights)
        head = {name: fitted.params[_OWN + name] for name in self._heads}
        personal = {**generic, **{name: generic[name] + value for name, value in head.items()}}
        update = FedRODUpdate(changes(generic, down.weights), data.lengths, fitted.loss)
        return update, FedRODModel(self.kept(personal), mine.rounds + 1, head)

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """Balanced softmax of the generic predictor plus cross-entropy of the personal one."""
        taken = batch if self._as_batch is None else self._as_batch(batch)
        body = {n.removeprefix("body."): v for n, v in params.items() if n.startswith("body.")}
        head = {n.removeprefix(HEAD): v for n, v in params.items() if n.startswith(HEAD)}
        features = functional_call(self.classifier.body, body, (taken["x"],))
        generic = functional_call(self.classifier.head, head, (features,))
        own = _OWN + HEAD
        more = F.linear(features.detach(), params[own + "weight"], params.get(own + "bias"))
        balanced = F.cross_entropy(generic + params[_PRIOR], taken["y"])
        return balanced + F.cross_entropy(generic.detach() + more, taken["y"])

    @property
    def _slope(self) -> Slope | None:
        """Twice the module's own slope where the head is all that is trained, else None."""
        slope = self.local.slope
        if slope is None or self._heads != list(self._form) or HEAD + "bias" not in self._heads:
            return None

        def both(params: Params, batch: Batch) -> tuple[Params, Tensor]:
            generic = {name: params[name] for name in self._heads}
            prior = {**generic, HEAD + "bias": generic[HEAD + "bias"] + params[_PRIOR]}
            summed = {name: value + params[_OWN + name] for name, value in generic.items()}
            (grads, balanced), (own, loss) = slope(prior, batch), slope(summed, batch)
            return {**grads, **{_OWN + n: grad for n, grad in own.items()}}, balanced + loss

        return both

    def _prior(self, data: Samples) -> Tensor:
        """γ log N_{m,c}, ``(C, n_classes)``; minus infinity for a class without samples."""
        n_classes, like = self.classifier.head.out_features, self._form[HEAD + "weight"]
        if not self.settings.gamma:
            return like.new_zeros(len(data), n_classes)
        return self.settings.gamma * class_counts(in_memory(data), n_classes).to(like.dtype).log()


def class_counts(data: SampleData, n_classes: int) -> Tensor:
    """Count the labels ``y`` of each client, ``(C, n_classes)`` int64.

    Raises:
        UserError: a label is no class.
    """
    labels = data.samples["y"]
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
        raise UserError(
            f"labels must be below the {n_classes} classes of the model: build it with "
            f"{int(labels.max()) + 1} or more"
        )
    clients = torch.arange(len(data)).repeat_interleave(data.lengths)
    counts = torch.bincount(clients * n_classes + labels, minlength=len(data) * n_classes)
    return counts.reshape(len(data), n_classes)


@dataclass(frozen=True, kw_only=True)
class _ClippedApart(RowSGD):
    """Gradient descent that clips the gradients of the two predictors apart."""

    limit: float | None = None

    def step(
        self, params: Params, grads: Grads, state: RowState, lr: float | Tensor, **more: object
    ) -> tuple[Params, RowState]:
        if self.limit is not None:
            dense = multiplied_out(grads)
            own = matching(dense, [_OWN + "*"])
            grads = {
                **clipped(without(dense, own), self.limit),
                **clipped(part(dense, own), self.limit),
            }
        return super().step(params, grads, state, lr, **more)  # type: ignore[arg-type]


class FedRODServer(FedAvgServer):
    """Server of Fed-ROD (Chen and Chao, ICLR 2022, Algorithm 1): averages body and generic head."""

    def initial(self, key: Key) -> Params:
        """Draw the initial parameters.

        Raises:
            UserError: the module has no head.
        """
        with_head(self.module)
        return super().initial(key)
