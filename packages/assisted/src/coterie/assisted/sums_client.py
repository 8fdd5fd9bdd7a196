"""An organisation that sends sums over its own samples, and is sent the model they move (ours)."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch
from torch import Tensor

from coterie.assisted.aae.training import Trained
from coterie.assisted.apart import Independent
from coterie.assisted.data import OwnDomain
from coterie.assisted.learner import Learner
from coterie.assisted.own_models import Model
from coterie.assisted.prediction_messages import ApartState
from coterie.assisted.samples.model import BySamples, models_of, own_samples
from coterie.assisted.samples.sums import named, params_of
from coterie.assisted.settings import Settings
from coterie.assisted.sums_messages import (
    JOIN,
    SUM,
    TAKE,
    Joining,
    Moved,
    Step,
    Summands,
    SummedState,
)
from coterie.core.tensors.device import tiny_as_zero
from coterie.core.tensors.keys import Key


class Summing(Independent):
    """An organisation of the method sums.

    Its samples are its columns, whose coordinates are the rows that all organisations have, in the
    order of their hashes. It predicts its own columns by the model, without anybody.

    Args:
        settings: with the reading's choices resolved.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._made: dict[int, tuple[Tensor, tuple[Learner, Model]]] = {}

    def enrol(self, data: OwnDomain, key: Key) -> SummedState:
        """Begin with the base model F⁰."""
        zero = data.train.values.new_zeros(())
        return SummedState(Trained({}, zero, 0, None), {}, unit=zero)

    @JOIN
    def join(
        self, down: None, mine: SummedState, data: OwnDomain, key: Key
    ) -> tuple[Joining, None]:
        """Say which rows it has, in a way that says nothing else, and how large residuals are."""
        learner = Learner(self.settings, data)
        residuals = learner.objective.residual(data.train.values, learner.base.at(data.train))
        square = residuals.square().mean() if len(residuals) else residuals.new_zeros(())
        rows, cells = torch.tensor(data.train.n_rows), torch.tensor(len(residuals))
        return Joining(digest(data.rows), rows, cells, square), None

    @SUM
    def sum(
        self, down: Step, mine: SummedState, data: OwnDomain, key: Key
    ) -> tuple[Summands, None]:
        """Add up over its samples what the next step of the model needs."""
        model = self.of(mine, data)[1]
        assert isinstance(model, BySamples)
        values, losses, samples = dict[str, Tensor](), [], 0
        for name, part in model.parts.items():
            with tiny_as_zero():
                found = part.sums(params_of(mine.learned.params, name), key.fold(name))
            values |= named(name, found.values)
            losses.append(found.loss)
            samples = found.samples
        loss = torch.stack(losses).mean()
        cells = torch.tensor(len(data.train))
        return Summands(values, loss, cells, torch.tensor(samples)), None

    @TAKE
    def take(
        self, down: Moved, mine: SummedState, data: OwnDomain, key: Key
    ) -> tuple[None, SummedState]:
        """Take the model as it is now, and choose its rate by own validation cells."""
        mine = replace(mine, unit=torch.tensor(down.unit, dtype=data.train.values.dtype))
        model = self.of(mine, data)[1]
        assert isinstance(model, BySamples)
        nothing = mine.learned.loss
        found = {
            name: Trained(params_of(down.params, name), nothing, down.round, None)
            for name in model.parts
        }
        # What has learned nothing may be 0 but for rounding, which no rate should enlarge.
        rated = model.rated if down.round else model.unrated
        return None, replace(mine, learned=rated(found))

    def of(self, mine: ApartState, data: OwnDomain) -> tuple[Learner, Model]:
        """What it predicts with, made once."""
        assert isinstance(mine, SummedState)
        found = self._made.get(data.id)
        if found is None or found[1][0].data is not data or not torch.equal(found[0], mine.unit):
            learner = Learner(self.settings, data)
            samples = own_samples(learner, data.rows.argsort())
            parts = models_of(learner, samples, mine.unit)
            found = self._made[data.id] = mine.unit, (learner, BySamples(learner, samples, parts))
        return found[1]


def digest(names: Tensor) -> Tensor:
    """Hash a set of names, whatever their order, ``(4,)`` int64.

    Example:
        >>> one, other = torch.tensor([5, 9]), torch.tensor([9, 5])
        >>> torch.equal(digest(one), digest(other)), torch.equal(digest(one), digest(other[:1]))
        (True, False)
    """
    ordered = names.sort().values.cpu().numpy().astype("<i8").tobytes()
    found = hashlib.sha256(ordered).digest()
    parts = [found[at : at + 8] for at in range(0, len(found), 8)]
    return torch.tensor([int.from_bytes(part, "little", signed=True) for part in parts])
