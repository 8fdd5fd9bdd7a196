"""The client half of FedAvg: some epochs of local SGD on the server's model."""

from __future__ import annotations

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import Pull
from coterie.core.methods.kit.local_sgd import changes, same_for_all
from coterie.core.methods.kit.model_client import GlobalModel, ModelClient, ModelUpdate, OwnModel
from coterie.core.protocol.client import step
from coterie.core.tensors.keys import Key


class FedAvgClient(ModelClient[OwnModel]):
    """ClientUpdate of FedAvg (McMahan et al., AISTATS 2017, Algorithm 1) for any module."""

    pull: Pull | None = None
    """Gradient of what the method adds to F_k, a client's own loss; its context is w."""

    @step
    def update(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[ModelUpdate, OwnModel]:
        """Run E epochs of SGD from w; a client without data changes nothing and weighs 0."""
        start = same_for_all(down.weights, len(data))
        batches = self.local.batches(data.train, key)
        fitted = self.local.train(start, batches, pull=self.pull, context=start)
        kept = OwnModel(self.kept(fitted.params), mine.rounds + 1)
        return ModelUpdate(changes(fitted.params, down.weights), data.lengths, fitted.loss), kept


__all__ = ["FedAvgClient", "GlobalModel", "ModelUpdate", "OwnModel"]
