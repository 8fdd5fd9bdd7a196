"""What an organisation learns with: its loss, its base model, its network and its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coterie.assisted.aae.inputs import Inputs
from coterie.assisted.aae.network import AAE
from coterie.assisted.aae.training import Plan
from coterie.assisted.base import Base, base_model, column_mean
from coterie.assisted.data.organisations import OwnDomain
from coterie.assisted.objective import OF_FEEDBACK, Objective, objective
from coterie.assisted.settings.run import Settings
from coterie.core.data.interactions.cells import Cells


@dataclass(frozen=True)
class Learner:
    """An organisation's own choices; its peers know none of them.

    Attributes:
        settings: with the reading's choices resolved.
        data: what it holds.
    """

    settings: Settings
    data: OwnDomain

    @cached_property
    def objective(self) -> Objective:
        """The overarching loss L_k."""
        return objective_of(self.settings, self.data.domain.name)

    @property
    def relevant_above(self) -> float:
        """Value of a cell above which it is relevant."""
        return self.settings.data.threshold if self.objective.is_rating else 0.5

    @cached_property
    def base(self) -> Base:
        """F⁰, of its own cells only."""
        start, align = self.settings.start or "smoothed", self.settings.data.align
        return base_model(self.data.train, self.objective, start, align)

    def network(self, n_outputs: int) -> AAE:
        """The autoencoder from its own columns to ``n_outputs``."""
        hidden, code = self.settings.model.widths(self.data.domain.name)
        sides = {name: features.shape[1] for name, features in self._sides.items()}
        n_inputs, dropout = self.data.train.n_columns, self.settings.model.dropout
        return AAE(n_inputs, n_outputs, sides, hidden, code, dropout)

    def inputs(self, first_column: int) -> Inputs:
        """What the encoder reads: its training cells, and side information if it uses any.

        Its own columns are those from ``first_column`` on among the outputs.
        """
        cells = self.data.train
        places = first_column + torch.arange(cells.n_columns)
        return Inputs(cells.columns, self._values, cells.n_columns, self._sides, places)

    @cached_property
    def plan(self) -> Plan:
        """How the network is trained."""
        how = self.settings.train
        visible = how.own_targets == "hidden"
        return Plan(
            how.epochs, how.batch_rows, how.lr, how.weight_decay, how.clip, how.hide, visible
        )

    @cached_property
    def _values(self) -> Tensor:
        cells = self.data.train
        if self.settings.model.inputs == "raw":
            return cells.values
        return cells.values - column_mean(cells)[cells.columns.values]

    @cached_property
    def _sides(self) -> dict[str, Tensor]:
        """Features of a row, and the sum of those of the columns that it has rated (Figure 2)."""
        if not self.settings.data.side:
            return {}
        domain, found = self.data.domain, {}
        if domain.row_features is not None:
            found["profile"] = domain.row_features
        if domain.column_features is not None:
            found["attributes"] = summed(self.data.train, domain.column_features)
        return found


def objective_of(settings: Settings, name: str) -> Objective:
    """The loss of the organisation of a name.

    Raises:
        UserError: settings name one that there is not.
    """
    usual = OF_FEEDBACK[settings.data.feedback]
    return objective((settings.objectives or {}).get(name, usual))


def summed(cells: Cells, features: Tensor) -> Tensor:
    """Sum the features of the columns that each row has cells in.

    Args:
        cells: of m rows.
        features: ``(n_columns, d)``.

    Returns:
        ``(m, d)``.
    """
    total = features.new_zeros(cells.n_rows, features.shape[1])
    return total.index_add_(0, cells.rows, features[cells.columns.values])
