"""The client half of local training: a client trains its own model and uploads nothing of it."""

from __future__ import annotations

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.methods.kit.local_sgd import same_for_all
from coterie.core.methods.kit.model_client import GlobalModel, ModelClient, OwnModel, QualityReport
from coterie.core.methods.settings.personal import LocalSettings
from coterie.core.protocol.client import step
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


class LocalClient(ModelClient[OwnModel]):
    """Client that learns alone; all start from the same model."""

    @step
    def receive(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[None, OwnModel]:
        """Take the initial model, once."""
        return None, OwnModel(tree.clone(same_for_all(down.weights, len(data))), mine.rounds)

    @step
    def train(
        self, down: None, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[None, OwnModel]:
        """Run E epochs of SGD from its own model."""
        fitted = self.local.train(mine.personal, self.local.batches(data.train, key))
        return None, OwnModel(dict(fitted.params), mine.rounds + 1)

    @step
    def evaluate(
        self, down: None, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[QualityReport, None]:
        """Measure its own model; there is no other."""
        return self.measured({"personal": mine.personal}, data), None


__all__ = ["GlobalModel", "LocalClient", "LocalSettings", "OwnModel"]
