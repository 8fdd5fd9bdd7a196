"""FedAvg: the server averages what its clients trained."""

from __future__ import annotations

from dataclasses import replace

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import Params, Pull
from coterie.core.methods.kit.averaging import Weighted, WeightedSum, mean_added, noted
from coterie.core.methods.kit.local_sgd import changes, same_for_all
from coterie.core.methods.kit.model_client import (
    UPDATE,
    GlobalModel,
    ModelClient,
    ModelUpdate,
    OwnModel,
)
from coterie.core.methods.kit.model_server import ModelServer, ServerModel
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.tensors.keys import Key


class FedAvgClient(ModelClient[OwnModel]):
    """ClientUpdate of FedAvg (McMahan et al., AISTATS 2017, Algorithm 1) for any module."""

    @property
    def pull(self) -> Pull | None:
        """Gradient of what the method adds to F_k, a client's own loss; its context is w."""
        return None

    @UPDATE
    def update(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[ModelUpdate, OwnModel]:
        """Run E epochs of SGD from w; a client without data changes nothing and weighs 0."""
        start = same_for_all(down.weights, len(data))
        batches = self.local.batches(data.train, key)
        fitted = self.local.train(start, batches, pull=self.pull, context=start)
        kept = OwnModel(self.kept(fitted.params), mine.rounds + 1)
        return ModelUpdate(changes(fitted.params, down.weights), data.lengths, fitted.loss), kept


class FedAvgServer(ModelServer[ServerModel]):
    """Server of FedAvg (McMahan et al., AISTATS 2017, Algorithm 1)."""

    def moved(self, weights: Params, total: WeightedSum[ModelUpdate]) -> Params:
        """The model after a round: w + sum_k n_k (w_k - w) / sum_k n_k."""
        return mean_added(weights, total)

    def round(self, state: ServerModel, cohort: Cohort, key: Key) -> ServerModel:
        """One round: move w by the changes of the clients chosen."""
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        fold = Weighted(self.settings.weighting)
        replies = chosen.ask(UPDATE, GlobalModel(state.weights), reduce=fold)
        if (total := noted(replies, cohort.journal)) is not None:
            state = replace(state, weights=self.moved(state.weights, total))
        self.evaluate_if_due(state, cohort)
        return state


__all__ = ["FedAvgClient", "FedAvgServer", "FedAvgSettings"]
