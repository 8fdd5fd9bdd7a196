"""An organisation that is sent the residuals of others once, and trains on them by itself (ours).

The first half of one round of MTAL: no outputs are exchanged, so that it needs no peer to train on
or to predict. Its models are those of `coterie.assisted.samples`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.assisted.aae.training import Trained
from coterie.assisted.apart import Apart
from coterie.assisted.client import numbered
from coterie.assisted.data import OwnDomain
from coterie.assisted.learner import Learner
from coterie.assisted.meeting import Meeting
from coterie.assisted.messages import RECEIVE, RESIDUAL, Received, Residuals, Turn
from coterie.assisted.own_models import Model
from coterie.assisted.prediction_messages import ApartState, ReceiverState
from coterie.assisted.protection import protected
from coterie.assisted.samples.matrix import digest
from coterie.assisted.samples.model import BySamples, Kinds, OfSamples, kinds, models_of
from coterie.assisted.settings import Settings
from coterie.assisted.view import Matrices, View, common
from coterie.core.data.interactions.cells import Cells
from coterie.core.tensors.appended import Appended
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


class Receiver(Meeting[ReceiverState], Apart):
    """An organisation of the method residuals.

    Models are drawn by a key of the run that all organisations know: who has been sent the same
    trains the same.

    Args:
        settings: with the reading's choices resolved.
    """

    asks = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._public, self._matrices = Key.from_seed(settings.seed).fold("samples"), Matrices()
        self._received: dict[int, tuple[object, tuple[Learner, Model]]] = {}
        self._shared: dict[tuple[str | int, ...], dict[str, OfSamples]] = {}

    def enrol(self, data: OwnDomain, key: Key) -> ReceiverState:
        """Begin with the base model F⁰."""
        scores = self.own(data)[0].base.at(data.train)
        # Models wait for what others send: of 18 organisations, each with its own, all but one are
        # the same.
        nothing = Trained({}, scores.new_zeros(()), 0, None)
        return ReceiverState(
            shared=torch.full((data.train.n_rows,), -1, dtype=torch.int32),
            peers=Appended(),
            scores=scores,
            learned=nothing,
            best={},
            received=Appended(),
        )

    @RESIDUAL
    def residual(
        self, down: Turn, mine: ReceiverState, data: OwnDomain, key: Key
    ) -> tuple[Residuals, None]:
        """Compute r_k = -∂L_k(F⁰, R_k)/∂F at the cells of common rows (Eq. 5, round 1)."""
        how, learner = self.settings.protect, self.own(data)[0]
        of = middle_of(learner) if how.centre == "receiver" else mine.scores
        residuals = learner.objective.residual(data.train.values, of)
        sent = protected(residuals, how, key.fold("protect"))
        return Residuals(sent[common(mine, data.train)]), None

    @RECEIVE
    def receive(
        self, down: Received, mine: ReceiverState, data: OwnDomain, key: Key
    ) -> tuple[None, ReceiverState]:
        """Keep the residuals of the others, and begin models of all."""
        mine = replace(mine, received=mine.received.append(down.residuals))
        begun = self.of(mine, data)[1].begin(self.drawing(key, 0))
        return None, replace(mine, learned=begun, best=begun.params)

    def drawing(self, key: Key, round_: int) -> Key:
        """By which a model is drawn (round 0), and trained: one that all organisations know."""
        return self._public.fold(round_)

    def of(self, mine: ApartState, data: OwnDomain) -> tuple[Learner, Model]:
        """What it learns with: its own residuals and those that it was sent; made once."""
        assert isinstance(mine, ReceiverState)
        if not len(mine.received):  # it did not answer when residuals were exchanged
            return self.own(data)
        found, token = self._received.get(data.id), mine.received.newest
        if found is None or found[0] is not token or found[1][0].data is not data:
            learner = Learner(self.settings, data)
            models = self._models(learner, self.fitted(mine, data))
            made = learner, BySamples(learner, self.samples(mine, data), models)
            found = self._received[data.id] = token, made
        return found[1]

    def samples(self, mine: ReceiverState, data: OwnDomain) -> Kinds:
        """Residuals of all columns in its own rows, its own as they are: what it predicts from."""
        return self._samples(mine, data, self._residual(mine, data))

    def fitted(self, mine: ReceiverState, data: OwnDomain) -> Kinds:
        """The same as its models fit them: its own as it sent them, if these came back.

        Then who was sent the same fits the same.
        """
        clean, sent = self._residual(mine, data), mine.received[0].get(str(data.id))
        if sent is None:
            return self._samples(mine, data, clean)
        known = common(mine, data.train)  # of other rows nothing was sent
        as_sent = self._centred(sent, data.train.columns.values[known])
        return self._samples(mine, data, clean.masked_scatter(known, as_sent))

    def _samples(self, mine: ReceiverState, data: OwnDomain, own: Tensor) -> Kinds:
        view, residuals = View(mine, data, self._matrices), {data.id: own}
        for peer, values in numbered(mine.received[0]).items():
            if peer != data.id:
                residuals[peer] = self._centred(values, view.peers[peer].cells.columns)
        found = view.targets(residuals)
        places = Ragged(found.pattern.columns.values.long(), found.pattern.columns.offsets)
        matrix = Cells(places, found.sorted(residuals), view.n_columns)
        return kinds(self.settings, matrix, view.first_column, data.train.n_columns)

    def _centred(self, sent: Tensor, columns: Tensor) -> Tensor:
        """Residuals that were sent, less their mean in each column where nobody took it off."""
        if self.settings.protect.centre == "sender" or not len(sent):
            return sent
        columns = columns.long()
        count = torch.bincount(columns)
        total = sent.new_zeros(len(count)).index_add_(0, columns, sent)
        return sent - (total / count.clamp_min(1))[columns]

    def _models(self, learner: Learner, samples: Kinds) -> dict[str, OfSamples]:
        """Models of samples; organisations in one process share what they would train alike."""
        widths = learner.settings.model.widths(learner.data.domain.name)
        key = digest(next(iter(samples.values())).matrix), *widths
        if key not in self._shared:
            self._shared[key] = models_of(learner, samples)
        return self._shared[key]

    def _residual(self, mine: ReceiverState, data: OwnDomain) -> Tensor:
        return self.own(data)[0].objective.residual(data.train.values, mine.scores)


def middle_of(learner: Learner) -> Tensor:
    """The middle of the scale at all training cells, ``(n,)``, which says nothing of any.

    Example:
        >>> from coterie.assisted.settings import DomainSettings
        >>> from coterie.core.data.interactions.cells import Domain
        >>> place = torch.zeros(1, dtype=torch.int64)
        >>> cells = Cells.from_pairs(place, place, torch.tensor([5.0]), 1, 1)
        >>> domain = Domain("d", place, place, cells, cells, cells)
        >>> settings = Settings(data=DomainSettings(scale=(1, 5)))
        >>> middle_of(Learner(settings, OwnDomain(0, place, domain))).tolist()
        [3.0]
    """
    scale, middle = learner.settings.data.scale, 0.0
    if learner.objective.is_rating and scale is not None:
        middle = sum(scale) / 2.0
    return torch.full_like(learner.data.train.values, middle)
