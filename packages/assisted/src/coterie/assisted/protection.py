"""What an organisation does to its residuals and outputs before they leave it.

Residuals are protected as MTAL's public code has it. Neither way has a guarantee of differential
privacy: what is clipped depends on the data. The public code takes the quantiles over the
residuals of all organisations, which nobody holds; here each takes those of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from coterie.assisted.data import OwnDomain
from coterie.assisted.messages import Outputs, PerPeer, RoundChoice, Total
from coterie.assisted.prediction_messages import Predictions
from coterie.assisted.settings import FEWEST, TOO_FEW, ProtectSettings
from coterie.core.errors import UserError
from coterie.core.privacy.noise import laplace
from coterie.core.protocol.common_secret import from_fixed, pairwise_masks, to_fixed
from coterie.core.tensors.keys import Key

TAILS = 0.025, 0.975
"""Quantiles that residuals are clipped to."""


def protected(residuals: Tensor, how: ProtectSettings, key: Key) -> Tensor:
    """Protect the residuals of a round, ``(n,)``.

    Args:
        residuals: ``(n,)`` of all training cells.
        how: what is done.
        key: the organisation's own, another one in each round.

    Example:
        >>> clean = torch.tensor([1.0, -2.0, 0.5])
        >>> protected(clean, ProtectSettings(), Key.from_seed(0)) is clean
        True
    """
    if how.residuals == "none" or not residuals.numel():
        return residuals
    low, high = ends(residuals)
    if how.residuals == "dp":
        noise = laplace(Key(key.state.reshape(1)), residuals.numel(), residuals.dtype)[0]
        return residuals.clamp(low, high) + noise * ((high - low) / how.alpha)
    return _answers(residuals, low, high, how.thresholds, key)


def ends(values: Tensor) -> tuple[float, float]:
    """The quantiles `TAILS` of values, ``(n,)``, by linear interpolation.

    Example:
        >>> [round(end, 3) for end in ends(torch.arange(101.0))]
        [2.5, 97.5]
    """
    ordered = values.double().sort().values  # torch.quantile takes 2^24 values at most
    places = [tail * (len(ordered) - 1) for tail in TAILS]
    found = []
    for place in places:
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        found.append(float(torch.lerp(ordered[below], ordered[above], place - below)))
    return found[0], found[1]


def _answers(values: Tensor, low: float, high: float, thresholds: int, key: Key) -> Tensor:
    """Interval privacy (Ding and Ding, 2021): mean of an unbiased answer to each threshold t.

    An answer says on which side of t a value is: 2t - low above, 2t - high below. Its mean over t,
    uniform between the two ends, is the value, or the end that is nearest.
    """
    total = torch.zeros_like(values)
    for number in range(thresholds):
        t = low + (high - low) * key.fold(number).uniform(values.numel(), dtype=values.dtype)
        total += torch.where(values < t, 2 * t - high, 2 * t - low)
    return total / thresholds


# Outputs behind masks: an organisation learns the sum of its peers' outputs, the server nothing.
#
# With equal weights w the sum is all that an organisation needs. Each sender adds masks that it
# shares with the others of the round; those of all of them, the receiver's own included, cancel.
# The server adds what it gets and passes the sum on, and the receiver adds its own mask.


class Masks:
    """Masks of one organisation for all receivers of a round.

    Every two organisations share some. This simulates their agreement: masks come from one secret
    of all organisations, so they hide nothing from a server that colludes with one of them.

    Args:
        data: of the organisation; with the secret.
        roster: ``(R,)`` int64 numbers of all that take part, this one included.
        when: what the masks are for, never the same twice.

    Raises:
        UserError: nobody said who takes part, they are too few, or this one has no secret.
    """

    def __init__(self, data: OwnDomain, roster: Tensor | None, *when: str | int) -> None:
        if roster is None or len(roster) < FEWEST:
            raise UserError(TOO_FEW)
        if data.secret is None:
            raise UserError(
                "'protect.sum' needs a secret that the organisations share: put the same number "
                "into the data of each"
            )
        self._id, self._roster = data.id, roster.sort().values  # all see one ring
        self._key = Key(data.secret).fold(*when)

    def hidden(self, outputs: Mapping[int, Tensor]) -> PerPeer:
        """Hide outputs, each ``(…, n)``, by their receivers; int64, multiples of 2^-20."""
        return {
            str(to): to_fixed(values) + self._mask(to, values.shape)
            for to, values in outputs.items()
        }

    def opened(self, total: Tensor) -> Tensor:
        """The sum ``(…, n)``, float64, of what all others sent to this organisation."""
        return from_fixed(total + self._mask(self._id, total.shape), torch.float64)

    def _mask(self, to: int, shape: tuple[int, ...]) -> Tensor:
        everybody = len(self._roster) // 2 * 2
        me = torch.tensor([self._id])
        return pairwise_masks(self._key.fold("to", to), self._roster, me, shape, everybody)[0]


def mean_of_round(data: OwnDomain, down: Outputs, own: Tensor | None) -> tuple[Tensor, Tensor]:
    """What an organisation has of a round: the mean output, in the place of each model's.

    Args:
        data: of the organisation.
        down: with the sum over its peers.
        own: ``(n,)`` outputs of its own model; None where they do not count.

    Returns:
        Numbers of the organisations in the mean, ``(J,)`` int64, its own first, and ``(n, J)``.
    """
    assert down.total is not None
    total, senders = _opened(data, down.total, "fit", down.round), down.total.senders
    if own is None:
        return senders, _alike(total / len(senders), len(senders))
    models = torch.cat([torch.tensor([data.id]), senders])
    return models, _alike((total + own) / len(models), len(models))


def means_of_rounds(
    data: OwnDomain, down: Predictions, own: Mapping[int, Tensor]
) -> Callable[[RoundChoice], Tensor]:
    """What an organisation has of every round at the cells of the test, as of one `mean_of_round`.

    Who does not answer now is left out of the means.

    Args:
        data: of the organisation.
        down: with the sums over its peers, ``(t, n)``.
        own: round -> ``(n,)`` outputs of its own model.

    Returns:
        Gives of the choice of a round ``(n, J)``.
    """
    assert down.total is not None
    sums = _opened(data, down.total, "answer", down.round, down.total.attempt)
    present = {data.id, *down.total.senders.tolist()}

    def outputs(choice: RoundChoice) -> Tensor:
        models = choice.models.tolist()
        total = sums[choice.round - 1]
        if data.id in models:
            total = total + own[choice.round]
        return _alike(total / len(present.intersection(models)), len(models))

    return outputs


def _opened(data: OwnDomain, total: Total, *when: str | int) -> Tensor:
    roster = torch.cat([total.senders, torch.tensor([data.id])])
    return Masks(data, roster, *when).opened(total.values)


def _alike(mean: Tensor, columns: int) -> Tensor:
    return mean[:, None].expand(-1, columns)


def added(
    masked: Mapping[int, PerPeer], roster: Iterable[int], attempt: int = 0
) -> dict[int, Total] | None:
    """Add what organisations sent, for each receiver; None where it cannot be used.

    Masks of who did not answer are still in the sums, and the sum of one peer hides nothing.

    Args:
        masked: what each sent, by its receiver.
        roster: who was asked.
        attempt: how often this was asked before.
    """
    senders = sorted(masked)
    if senders != sorted(roster) or len(senders) < FEWEST:
        return None
    found = {}
    for to in senders:
        parts = [masked[one][str(to)] for one in senders if one != to]
        if len({part.shape for part in parts}) > 1:
            return None
        others = torch.tensor([one for one in senders if one != to])
        found[to] = Total(torch.stack(parts).sum(0), others, attempt)
    return found


def check_sum(rows: Mapping[int, Tensor]) -> None:
    """Refuse organisations whose outputs cannot be summed.

    Args:
        rows: ``(m_k,)`` keyed hashes of each.

    Raises:
        UserError: they are too few, or have other rows than their peers.
    """
    if len(rows) < FEWEST:
        raise UserError(TOO_FEW)
    first, *others = (each.sort().values for each in rows.values())
    if not all(torch.equal(first, each) for each in others):
        raise UserError(
            "'protect.sum' needs organisations that all know the same users (or items), and these "
            "do not: leave protect.sum out"
        )
