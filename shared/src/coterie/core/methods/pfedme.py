"""pFedMe: personal models by Moreau envelopes, whose centre the server moves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core.data.samples.samples import CountedBatches, batch_counts
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import fit
from coterie.core.local_training.gradients import Grads, multiplied_out
from coterie.core.local_training.losses import Batch
from coterie.core.local_training.row_optimizer import Params, RowOptimizer, RowState
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import UPDATE, GlobalModel, ModelUpdate, OwnModel
from coterie.core.methods.kit.model_server import ModelServer, ServerModel
from coterie.core.methods.kit.training import changes, same_for_all
from coterie.core.methods.kit.uploads import Weighted, noted
from coterie.core.methods.settings.any_module import PFedMeSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Step
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True, kw_only=True)
class RowMoreau(RowOptimizer):
    """K gradient steps towards θ = argmin f + λ/2 ‖θ - w‖², then a step of w to it; and so on.

    The parameters are θ; the moment "w" is w, which changes with every K-th step:
    w <- w - η λ (w - θ) (Algorithm 1, line 8).

    Attributes:
        lam: λ.
        inner_steps: K.
        eta: η.
    """

    lam: float
    inner_steps: int
    eta: float

    @property
    def moments(self) -> tuple[str, ...]:
        """The local model w."""
        return ("w",)

    def _direction(self, grad: Tensor, moments: Params, steps: Tensor) -> tuple[Tensor, Params]:
        return grad, moments

    def step(
        self, params: Params, grads: Grads, state: RowState, lr: float | Tensor, **more: object
    ) -> tuple[Params, RowState]:
        """Make one step towards θ in every row; see `RowOptimizer.step`.

        ``clip`` shortens the sum of gradient and proximal term;
        `coterie.core.local_training.fit.fit` gives none, as it has shortened the gradient alone
        before.
        """
        local = state.moments["w"]
        held = {
            name: torch.add(grad, params[name] - local[name], alpha=self.lam)
            for name, grad in multiplied_out(grads).items()
        }
        theta, after = super().step(params, held, state, lr, **more)  # type: ignore[arg-type]
        due = after.steps % self.inner_steps == 0
        if not due.any():
            return theta, after
        moved = {name: w - self.eta * self.lam * (w - theta[name]) for name, w in local.items()}
        return theta, RowState(after.steps, {"w": tree.where_rows(due, moved, local)})


PERSONALISE = Step("personalise", GlobalModel, None)


class PFedMeClient(ModelClient[OwnModel]):
    """Client of pFedMe (Dinh et al., NeurIPS 2020, Algorithm 1) for any module.

    Its personal model is θ, as its last mini-batch left it.
    """

    settings: PFedMeSettings

    @UPDATE
    def update(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[ModelUpdate, OwnModel]:
        """Run R local rounds from W and send the local model w; one without data sends W."""
        start = same_for_all(down.weights, len(data))
        batches = self.local.batches(data.train, key, self._epochs(data))
        inner = self.settings.inner_steps
        optimizer = self._optimizer()
        fitted = fit(
            self.local.loss,
            start,
            _Repeated(batches, inner),
            optimizer,
            self.settings.personal_lr,
            self._local_rounds(data) * inner,
            state=RowState(optimizer.begin(start).steps, {"w": start}),
            clip=self.settings.clip,
            slope=self.local.slope,
            factored=self.local.factored,
            recording=self.local.recording,
        )
        change = changes(fitted.state.moments["w"], down.weights)
        kept = OwnModel(self.kept(fitted.params), mine.rounds + 1)
        return ModelUpdate(change, data.lengths, fitted.loss), kept

    @PERSONALISE
    def personalise(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[None, OwnModel]:
        """Do the same and send nothing: in the paper all clients train, and some are heard."""
        return None, self.update(down, mine, data, key)[1]

    def work(self, data: SplitSamples) -> Tensor:
        """Gradient steps of each client, ``(C,)``."""
        return self._local_rounds(data) * self.settings.inner_steps

    def _local_rounds(self, data: SplitSamples) -> Tensor:
        """R of each client, ``(C,)`` int64; 0 without data."""
        rounds = self.settings.local_rounds
        if rounds is None:
            return self.local.steps(data.train)
        return torch.where(data.lengths > 0, rounds, 0)

    def _epochs(self, data: SplitSamples) -> Tensor:
        """Passes over the data that R mini-batches need, ``(C,)`` int64."""
        per_epoch = batch_counts(data.lengths, self.settings.batch_size).clamp(min=1)
        return (self._local_rounds(data) + per_epoch - 1) // per_epoch

    def _optimizer(self) -> RowMoreau:
        return RowMoreau(
            weight_decay=self.settings.weight_decay,
            lam=self.settings.lam,
            inner_steps=self.settings.inner_steps,
            eta=self.settings.lr,
        )


@dataclass(frozen=True)
class _Repeated:
    """Batches each of which is seen ``times`` times in a row."""

    batches: CountedBatches
    times: int

    def __call__(self, number: int, rows: Tensor) -> Batch:
        return self.batches(number // self.times, rows)


class PFedMeServer(ModelServer[ServerModel]):
    """Server of pFedMe (Dinh et al., NeurIPS 2020, Algorithm 1)."""

    settings: PFedMeSettings
    averages = sums = True

    def round(self, state: ServerModel, cohort: Cohort, key: Key) -> ServerModel:
        """One round: all clients train, W <- (1 - β) W + β mean w_i of those chosen (line 13)."""
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        others = torch.isin(cohort.ids, chosen.ids, invert=True).nonzero().flatten()
        down = GlobalModel(state.weights)
        if others.numel() and self.settings.keep_models:
            cohort.part(others).ask(PERSONALISE, down)
        replies = chosen.ask(UPDATE, down, reduce=Weighted(self.settings.weighting))
        if (total := noted(replies, cohort.journal)) is not None:
            share = self.settings.beta / int(total.weight)
            weights = {
                name: w + share * total.sums.change[name] for name, w in state.weights.items()
            }
            state = replace(state, weights=weights)
        self.evaluate_if_due(state, cohort)
        return state
