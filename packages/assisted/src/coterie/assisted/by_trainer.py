"""The models of `alone` and `joint` trained by any Trainer, on the batches of these methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from coterie.assisted.aae.batches import Batch, RowBatches
from coterie.assisted.aae.cells import Pattern
from coterie.assisted.aae.network import AAE, DECODER, RATINGS, Params
from coterie.assisted.aae.training import batches_of, dense, mean_over_cells
from coterie.assisted.data import OwnDomain
from coterie.assisted.learner import Learner
from coterie.assisted.objective import Objective
from coterie.assisted.own_models import CellBatches, recommender
from coterie.assisted.quality import measured, monitor_of, quality
from coterie.assisted.settings import OF_SAMPLES, UNTRAINED, Settings
from coterie.core.errors import UserError
from coterie.core.local_training.losses import Batch as Named
from coterie.core.metrics.ranking_report import Split
from coterie.core.models.recommender import Recommender
from coterie.core.protocol.run_keys import RunKeys
from coterie.core.standalone import PREFIX, Standalone
from coterie.core.tensors.keys import Key


class Wide(nn.Module):
    """A linear layer whose weight has a row an input, as `AAE` has its widest ones.

    Args:
        n_in: number of inputs.
        n_out: number of outputs.
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.empty(n_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, n_in) -> (B, n_out)``."""
        return x @ self.weight + self.bias


class Encoder(nn.Module):
    """``wide -> tanh -> code -> tanh``.

    Args:
        n_in: number of inputs.
        hidden: width of the layer.
        code: width of the code.
    """

    def __init__(self, n_in: int, hidden: int, code: int) -> None:
        super().__init__()
        self.wide, self.code = Wide(n_in, hidden), nn.Linear(hidden, code)

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows, ``(B, n_in) -> (B, code)``."""
        return torch.tanh(self.code(torch.tanh(self.wide(x))))


class Decoder(nn.Module):
    """``hidden -> tanh -> wide``.

    Args:
        code: width of the code.
        hidden: width of the layer.
        n_out: number of outputs.
    """

    def __init__(self, code: int, hidden: int, n_out: int) -> None:
        super().__init__()
        self.hidden, self.wide = nn.Linear(code, hidden), nn.Linear(hidden, n_out)

    def forward(self, code: Tensor) -> Tensor:
        """Decode, ``(B, code) -> (B, n_out)``."""
        found: Tensor = self.wide(torch.tanh(self.hidden(code)))
        return found


class Autoencoder(nn.Module):
    """An `AAE` with parameters of the same names.

    Args:
        sizes: of the network.
        params: first values of the parameters.

    Example:
        >>> from coterie.core.tensors.keys import Key
        >>> sizes = AAE(3, 5, hidden=4, code=2)
        >>> Autoencoder(sizes, sizes.start(Key.from_seed(0)))(torch.ones(1, 3)).shape
        torch.Size([1, 5])
    """

    def __init__(self, sizes: AAE, params: Params) -> None:
        super().__init__()
        self._sides = tuple(sizes.sides)
        for name, width in {RATINGS: sizes.n_inputs, **sizes.sides}.items():
            self.add_module(name, Encoder(width, sizes.hidden, sizes.code))
        self.add_module(DECODER, Decoder(sizes.code, sizes.hidden, sizes.n_outputs))
        self.to(next(iter(params.values())).dtype)
        self.load_state_dict(params)

    def forward(
        self, ratings: Tensor, sides: Mapping[str, Tensor] | None = None, keep: Tensor | None = None
    ) -> Tensor:
        """Give all outputs of rows, ``(B, n_outputs)``.

        Args:
            ratings: ``(B, n_inputs)``, 0 where there is none.
            sides: features ``(B, d)`` by name.
            keep: ``(B, code)`` what the code is multiplied with; None = no dropout.
        """
        code: Tensor = self.get_submodule(RATINGS)(ratings)
        for name in self._sides:
            code = code + self.get_submodule(name)((sides or {})[name])
        found: Tensor = self.get_submodule(DECODER)(code if keep is None else code * keep)
        return found

    def loss(self, batch: Batch, loss: Objective) -> Tensor:
        """Mean loss over the cells of a batch, ``()``.

        Args:
            batch: what the step sees.
            loss: of single cells.
        """
        found = self(dense(batch.inputs, batch.ratings), batch.sides, batch.keep)
        return mean_over_cells(found, batch, loss)


_ROWS = 256
"""Rows that are measured at a time."""
B = TypeVar("B")


class ApartTraining(Standalone[B, tuple[Split, Tensor], tuple[Tensor, Tensor]]):
    """Train a model of one organisation; an epoch is a pass over its rows.

    Args:
        learner: of the organisation.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner, self._keys = learner, RunKeys(learner.settings.seed)
        self._id = torch.tensor([learner.data.id])
        self.clip, self.monitor = learner.plan.clip, monitor_of(learner.settings)
        if not len(learner.data.train):
            raise UserError(f"{learner.data.domain.name} has no cell to train on")
        self._drawn: tuple[int, Any] | None = None
        self.per_epoch = self._batches(0).per_epoch

    @abstractmethod
    def made(self, key: Key) -> Any:
        """Cut the batches of a round, which have ``per_epoch``; they are counted over all rounds.

        Args:
            key: of the round.
        """

    @abstractmethod
    def scores(self, split: Split, rows: Tensor) -> Tensor:
        """Score the cells of a split in some rows, ``(n,)``."""

    def optimizer(self) -> Optimizer:
        """Adam, with the settings' rate and pull."""
        plan = self.learner.plan
        return Adam(self.trained(), lr=plan.lr, weight_decay=plan.weight_decay)

    def questions(self, split: Split) -> Sequence[tuple[Split, Tensor]]:
        """Give all rows, some at a time, where there are cells."""
        cells = getattr(self.learner.data, split)
        return [(split, rows) for rows in torch.arange(cells.n_rows).split(_ROWS) if len(cells)]

    def outcome(self, question: tuple[Split, Tensor]) -> tuple[Tensor, Tensor]:
        """Give the rows and the scores of their cells."""
        return question[1], self.scores(*question)

    def measures(self, split: Split, outcomes: Sequence[tuple[Tensor, Tensor]]) -> dict[str, float]:
        """Measure as the organisation does itself."""
        rows, scores = (torch.cat(part) for part in zip(*outcomes, strict=True))
        settings, cells = self.learner.settings, getattr(self.learner.data, split)
        pooled = settings.evaluation == "pooled"
        found = quality(self.learner, cells.take(rows), scores, pooled)
        named = measured([found], settings)
        return {f"{PREFIX[split]}/{name}": value for name, value in named.items()}

    def enrolled(self) -> Key:
        """By which the organisation draws its first model."""
        return Key(self._keys.clients.fold(self._id).fold("enrol").state[0])

    def _batches(self, round_: int) -> Any:
        if self._drawn is None or self._drawn[0] != round_:
            key = self._keys.step(self._id, "train", 0, round_ + 1)
            self._drawn = round_, self.made(Key(key.state[0]))
        return self._drawn[1]

    def _of(self, number: int) -> Any:
        """The batches of the round in which a batch is."""
        return self._batches(number // (self.per_epoch * self.learner.plan.epochs))


class AutoencoderTraining(ApartTraining[Batch]):
    """Train the autoencoder, by autograd on dense rows.

    Args:
        learner: of the organisation.
    """

    network: Autoencoder

    def __init__(self, learner: Learner) -> None:
        cells = learner.data.train
        self._sizes, self._inputs = learner.network(cells.n_columns), learner.inputs(0)
        self._pattern, self._loss = Pattern(cells.columns, cells.n_columns), learner.objective
        super().__init__(learner)
        params = self._sizes.start(self.enrolled().fold("start"), cells.values.dtype)
        self.network = Autoencoder(self._sizes, params)

    def made(self, key: Key) -> RowBatches:
        """Cut batches of rows."""
        given = self._sizes, self._inputs, self._pattern, self.learner.data.train.values
        return batches_of(*given, self.learner.plan, key)

    def batch(self, number: int) -> Batch:
        """Give some rows with all their cells, and what is dropped and hidden of them."""
        found: Batch = self._of(number)(number)
        return found

    def loss(self, batch: Batch) -> Tensor:
        """Mean loss over the cells."""
        return self.network.loss(batch, self._loss)

    def scores(self, split: Split, rows: Tensor) -> Tensor:
        """Decode the training cells of the rows."""
        own = self._inputs.pattern.batches(rows.cpu(), len(rows))
        (given,), (ratings,) = own.cells, own.take(self._inputs.values)
        device = next(self.trained()).device
        sides = {name: values[rows.cpu()].to(device) for name, values in self._inputs.sides.items()}
        found = self.network(dense(given, ratings).to(device), sides)
        cells = getattr(self.learner.data, split).take(rows.cpu())
        scores: Tensor = found[cells.rows.to(device), cells.columns.values.to(device)]
        return scores


class FactorTraining(ApartTraining[Named]):
    """Train a model with a vector for every row and column: MF, MLP or NCF.

    Args:
        learner: of the organisation.
    """

    network: Recommender

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        made = recommender(learner, self.enrolled().fold("start"))
        self.network = made.to(learner.data.train.values.dtype)

    def made(self, key: Key) -> CellBatches:
        """Cut batches of rows."""
        return CellBatches(self.learner.data.train, self.learner.plan.batch_rows, key)

    def batch(self, number: int) -> Named:
        """Give some rows with all their cells."""
        found = self._of(number)(number, torch.tensor([0]))
        return {name: values[0] for name, values in found.items()}

    def loss(self, batch: Named) -> Tensor:
        """Mean loss over the cells."""
        output = self.network.score_cells(batch["user"], batch["row"], batch["item"])
        return self.learner.objective.loss(batch["rating"], output).mean()

    def scores(self, split: Split, rows: Tensor) -> Tensor:
        """Score the cells of the rows."""
        cells = getattr(self.learner.data, split).take(rows.cpu())
        places = cells.rows.to(rows.device), cells.columns.values.to(rows.device)
        return self.network.score_cells(rows, *places)


def standalone(settings: Settings, data: OwnDomain) -> ApartTraining[Any]:
    """Make what trains the model that the settings name, for one organisation.

    Args:
        settings: with the reading's choices resolved.
        data: of the organisation.

    Raises:
        UserError: the model is in closed form or of samples, or there is nothing to train on.
    """
    learner, name = Learner(settings, data), settings.model.name
    if name in UNTRAINED:
        raise UserError(
            f"'model.name' {name} is in closed form, so no Trainer trains it: choose aae, mf, mlp "
            "or ncf"
        )
    if name in OF_SAMPLES:
        raise UserError(
            f"'model.name' {name} is no network by itself, it has a rate and may be several: "
            "choose aae, mf, mlp or ncf"
        )
    return AutoencoderTraining(learner) if name == "aae" else FactorTraining(learner)
