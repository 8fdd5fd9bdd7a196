"""Reg: a squared pull towards the parameters of the previous block."""

from __future__ import annotations

from coterie.continual.backbones import Backbone, Params
from coterie.continual.local_training import Pull
from coterie.continual.messages import ClientState, ItemTable
from coterie.continual.retention.base import Memory, Retention
from coterie.continual.settings import RegSettings
from coterie.core.errors import UserError


class Regularisation(Retention):
    """L = L_Rec + λ (1[u is old] R(Φ_u - Φ_u_old) + R(Q_u[old items] - Q_old)).

    R is the squared error, mean or sum over the entries. "Adds an MSE loss to constrain parameter
    deviation from the previous task" (section 5.1); how is nowhere printed, so the reduction and
    what is pulled are this project's reading. The pull moves every old row, in the batch or not;
    as it is the same share for all rows, the upload carries that share, not a dense table.
    """

    looks_back = True

    def __init__(self, backbone: Backbone, settings: RegSettings) -> None:
        super().__init__(backbone)
        self.settings = settings

    def empty(self, params: Params) -> Memory:
        """The private parameters at the start of the block."""
        return {"start": {name: value.clone() for name, value in params.items()}}

    def at_block_end(self, mine: ClientState, table: object, data: object, key: object) -> Memory:
        """Remember the private parameters of the best round."""
        return {"start": {name: value.clone() for name, value in mine.best.items()}}

    def pull(self, mine: ClientState, down: ItemTable, item_lr: float) -> Pull | None:
        """Pull old items of all users, and private parameters of old users."""
        if down.old is None:
            return None
        old_user = (mine.blocks > 0).to(down.items.dtype)
        rates = {
            name: self._rate(self.backbone.rates[name], value[0].numel()) * old_user
            for name, value in mine.params.items()
        }
        item_rate = self._rate(item_lr, down.old.numel())
        return Pull(down.old, item_rate, mine.memory["start"], rates)

    def _rate(self, lr: float, entries: int) -> float:
        """Share of the distance that one SGD step covers: lr * 2 λ / (1 or the entries).

        Raises:
            UserError: the step overshoots (share of 2 or more) and would diverge.
        """
        rate = 2 * self.settings.strength * lr
        rate /= entries if self.settings.reduction == "mean" else 1
        if rate >= 2:
            raise UserError(
                f"reg.strength {self.settings.strength} with learning rate {lr:g} diverges: one "
                f"step covers {rate:.3g} of the distance; use reg.strength below "
                f"{self.settings.strength * 2 / rate:.2g} or reg.reduction mean"
            )
        return rate
