"""FedAvg: the server averages what its clients trained."""

from __future__ import annotations

from dataclasses import replace

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.gradients import Pull
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import UPDATE, GlobalModel, ModelUpdate, OwnModel
from coterie.core.methods.kit.model_server import ModelServer, ServerModel
from coterie.core.methods.kit.training import same_for_all
from coterie.core.methods.kit.uploads import Weighted, WeightedSum, mean_added, noted
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.tensors.keys import Key


class FedAvgClient(ModelClient[OwnModel]):
    """ClientUpdate of FedAvg (McMahan et al., AISTATS 2017, Algorithm 1) for any module."""

    admits_alone = True
    admits_branch = True

    @property
    def pull(self) -> Pull | None:
        """Gradient of what the method adds to F_k, a client's own loss; its context is w."""
        return None

    @UPDATE
    def update(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[ModelUpdate, OwnModel]:
        """Train for E epochs from w; a client without data changes nothing and weighs 0."""
        given = same_for_all(down.weights, len(data))
        up, fitted = self.train_from(given, mine, data, key, self.pull)
        kept = self.after(mine, fitted)
        if self.branch is not None:
            kept = replace(kept, personal=self.own_model(given, fitted.params, data, key))
        return up, kept


class FedAvgServer(ModelServer[ServerModel]):
    """Server of FedAvg (McMahan et al., AISTATS 2017, Algorithm 1)."""

    averages = sums = True

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
