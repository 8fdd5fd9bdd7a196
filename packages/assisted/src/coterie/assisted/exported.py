"""What a run of assisted learning gives to other programs: what one organisation has learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coterie.assisted.aae.network import RATINGS
from coterie.assisted.algorithm import Relay
from coterie.assisted.apart import Independent
from coterie.assisted.client import Organisation
from coterie.assisted.data import Organisations, OwnDomain
from coterie.assisted.learner import Learner, column_mean
from coterie.assisted.messages import OrganisationState, RoundChoice
from coterie.assisted.samples.model import BySamples
from coterie.assisted.view import places_of
from coterie.core.data.interactions.cells import Cells
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.run.exported import Asked, Exported, Graph

_CHECKED = 16  # rows on which a graph is checked
_LOADING = """\
from safetensors.numpy import load_file

tensors = load_file("model.safetensors")  # how they make scores: export it as ONNX, too
columns = load_file("own.safetensors")["columns"]  # which column is which number
"""
_OF_ITS_OWN = """\
from safetensors.numpy import load_file

tensors = load_file("model.safetensors")  # how they make scores: docs/assisted.md of coterie
columns = load_file("own.safetensors")["columns"]  # which column is which number
"""
_ABOUT = {
    "columns": "numbers of the columns: items as in items.csv, or users where these are shared out",
    "base": "F0 of every column",
    "eta": "rate of each round",
    "weights": "weights of the models of each round, its own first",
}
_OF_SAMPLES = _ABOUT | {
    "unit": "of the residuals that models read and give",
    "eta": "rate of what the models expect",
    "weights": "weights of the models, by their names",
}


def exported_organisation(
    module: FederatedRun, organisations: Organisations, data: Interactions, asked: Asked
) -> Exported:
    """Give the models of one organisation, and for MTAL how it adds up its peers' outputs.

    Args:
        module: a run.
        organisations: its data.
        data: the items.
        asked: the organisation.

    Raises:
        UserError: none is asked for, or there is no such one, or a user is.
    """
    each, last = {one.id: one for one in organisations.each}, len(organisations.each) - 1
    if asked.user is not None or asked.client is None:
        raise UserError(
            "nothing of this run is public, every organisation keeps its models: say --client 0 "
            f"to {last}"
        )
    if asked.client not in each:
        raise UserError(f"there is no client {asked.client}: choose 0 to {last}")
    one = each[asked.client]
    state: Any = module.store.take(torch.tensor([one.id]))
    client, about, loading = module.federation.client, _ABOUT, _LOADING
    if isinstance(client, Independent):
        why = "models that predict without peers are given as tensors: say --format safetensors"
        tensors, graph, loading = dict(state.best), None, _OF_ITS_OWN
        learner, model = client.of(state, one)
        if isinstance(model, BySamples):
            tensors |= {"base": learner.base.column, "unit": model.unit}
            about = _OF_SAMPLES
    else:
        assert isinstance(client, Organisation)
        tensors, graph, why = _with_peers(module, client, state, one)
    chosen = getattr(module.server_state, "chosen", None)
    number = chosen.round if chosen is not None and chosen.measured else module.round
    return Exported(
        tested=f"round {number}",
        tensors=tensors,
        about=about,
        absent=("Models of the other organisations.", "Ratings, and what rows deviate from F0."),
        loading=loading,
        own={"columns": one.domain.columns},
        files={"own.safetensors": "numbers of the columns"},
        items=data,
        graph=graph,
        no_graph=why,
    )


def _with_peers(
    module: FederatedRun, client: Organisation, state: OrganisationState, one: OwnDomain
) -> tuple[dict[str, Tensor], Graph | None, str]:
    learner = client.learner(one)
    rows = torch.arange(min(_CHECKED, one.train.n_rows))
    cells = _all_of(one.train, rows)
    server = module.federation.server
    assert isinstance(server, Relay)
    if client.settings.protect.sum:
        return {}, None, "organisations give sums to each other, which only they can ask for"
    places = {one.id: places_of(state, cells)}
    down = server.answered(module.server_state, module.newest_cohort(), places)[one.id]
    steps = list(client.added(down, state, one, cells))
    models = {model.round: model.params for model in state.models}
    tensors = {
        f"round{choice.round}.{name}": value
        for choice, _ in steps
        for name, value in models.get(choice.round, {}).items()
    }
    tensors["base"] = learner.base.column
    if not steps:
        return tensors, None, "the tested round is the start, without a model"
    if len({tuple(choice.models.tolist()) for choice, _ in steps}) > 1 or any(
        choice.round not in models for choice, _ in steps
    ):
        return tensors, None, "other organisations took part in some rounds than in others"
    tensors["eta"] = torch.stack([choice.eta for choice, _ in steps])
    tensors["weights"] = torch.stack([choice.weights for choice, _ in steps])
    view = client.view(state, one)
    network = Assisted(learner, view.first_column, [(c, models[c.round]) for c, _ in steps], one.id)
    outputs = torch.stack([outputs for _, outputs in steps])  # (T, n, J)
    expected = client.predicted(down, state, one, cells).view(len(rows), -1)
    shape = (len(steps), len(rows), one.train.n_columns, -1)
    others = outputs.reshape(shape).permute(1, 0, 3, 2)[:, :, network.first_peer :]
    inputs = {**_of_rows(learner, rows), "others": others.contiguous()}
    return tensors, Graph(network, inputs, _inputs_in_words(inputs), "scores", expected), ""


def _all_of(cells: Cells, rows: Tensor) -> Cells:
    """All cells of some rows, row by row."""
    columns = torch.arange(cells.n_columns)
    row, column = rows.repeat_interleave(len(columns)), columns.repeat(len(rows))
    nothing = torch.zeros(len(row), dtype=cells.values.dtype)
    return Cells.from_pairs(row, column, nothing, cells.n_rows, cells.n_columns)


def _of_rows(learner: Learner, rows: Tensor) -> dict[str, Tensor]:
    """What an organisation's network reads of some rows."""
    train = learner.data.train
    ratings = train.values.new_zeros(train.n_rows, train.n_columns)
    rated = torch.zeros_like(ratings)
    at = train.rows, train.columns.values
    ratings[at], rated[at] = train.values, 1.0
    found = {"ratings": ratings[rows], "rated": rated[rows]}
    sides = learner.inputs(0).sides
    found |= {name: features[rows] for name, features in sides.items()}
    if learner.base.row is not None:
        found["deviation"] = learner.base.row[rows]
    return found


def _inputs_in_words(inputs: Mapping[str, Tensor]) -> dict[str, str]:
    words = {
        "ratings": "of every column; 0 where there is none",
        "rated": "1 where there is a rating, else 0",
        "deviation": "what the row deviates from F0",
        "others": "outputs of the peers by round and peer; of one that does not know the row, the "
        "mean of those who do",
        "scores": "of every column; which number it has, is in `columns` of own.safetensors",
    }
    inputs = {**inputs, "scores": inputs["ratings"]}
    return {name: words.get(name, f"side information, {name}") for name in inputs}


class Assisted(nn.Module):
    """F^t of all columns of an organisation: F⁰ + Σ_t η^t Σ_j w_j^t f_j^t.

    Args:
        learner: of the organisation.
        first_column: where its columns begin among the outputs of its networks.
        rounds: its choice of each round, and the parameters of its network.
        own: its number.

    Attributes:
        first_peer: 1 where its own model counts, else 0.
    """

    mean: Tensor
    base: Tensor

    def __init__(
        self,
        learner: Learner,
        first_column: int,
        rounds: Sequence[tuple[RoundChoice, Mapping[str, Tensor]]],
        own: int,
    ) -> None:
        super().__init__()
        self._columns = slice(first_column, first_column + learner.data.train.n_columns)
        self.first_peer = int(int(rounds[0][0].models[0]) == own)
        mean = column_mean(learner.data.train)
        raw = learner.settings.model.inputs == "raw"
        self.register_buffer("mean", torch.zeros_like(mean) if raw else mean)
        self.register_buffer("base", learner.base.column)
        self._sides = list(learner.inputs(0).sides)
        self._deviates = learner.base.row is not None
        self.choices = [choice for choice, _ in rounds]
        for number, (_, params) in enumerate(rounds):
            for name, value in params.items():
                self.register_buffer(f"round{number}_{name.replace('.', '_')}", value)

    def forward(self, ratings: Tensor, rated: Tensor, *more: Tensor) -> Tensor:
        """Score rows: ``(B, n)``."""
        *own, others = more
        sides = dict(zip(self._sides, own, strict=False))
        scores = self.base.expand(ratings.shape[0], -1)
        if self._deviates:
            scores = scores + own[-1][:, None]
        given = {RATINGS: rated * (ratings - self.mean), **sides}
        for number, choice in enumerate(self.choices):
            step = torch.einsum(
                "bjn,j->bn", others[:, number].double(), choice.weights[self.first_peer :].double()
            )
            if self.first_peer:
                step = step + choice.weights[0].double() * self._own(number, given).double()
            scores = scores + (choice.eta.double() * step).to(scores.dtype)
        return scores

    def _own(self, number: int, given: Mapping[str, Tensor]) -> Tensor:
        """Outputs of the organisation's own network of a round, ``(B, n)``."""

        def of(name: str) -> Tensor:
            return self.get_buffer(f"round{number}_{name.replace('.', '_')}")

        codes = []
        for name, value in given.items():
            hidden = torch.tanh(value @ of(f"{name}.wide.weight") + of(f"{name}.wide.bias"))
            codes.append(torch.tanh(hidden @ of(f"{name}.code.weight").T + of(f"{name}.code.bias")))
        code = sum(codes[1:], codes[0])
        hidden = torch.tanh(code @ of("decoder.hidden.weight").T + of("decoder.hidden.bias"))
        wide, bias = of("decoder.wide.weight"), of("decoder.wide.bias")
        return hidden @ wide[self._columns].T + bias[self._columns]
