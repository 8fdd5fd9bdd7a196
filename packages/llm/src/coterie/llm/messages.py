"""What crosses the boundary between an organisation and the server, and what stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from coterie.core.local_training.row_optimizer import RowState
from coterie.core.metrics.ranking_report import RankingReport
from coterie.core.protocol.messages import Down, Private, Reveals, Up, leaves


@dataclass(frozen=True)
class Adapters(Down):
    """The adapter that a client trains on, R_c: its own in PPLR, the same for all in FedAvg.

    Attributes:
        row: ``(1, d)`` the parts that the client holds.
        round: t, from 0.
    """

    row: Tensor
    round: int = 0


@dataclass(frozen=True)
class Candidate(Down):
    """An adapter to be measured.

    Attributes:
        row: ``(1, d)`` the parts that the client holds.
        split: on which part of the data.
        stage: of fine-tuning; in the second, against the item embeddings that the client keeps.
    """

    row: Tensor
    split: Literal["valid", "test"] = "valid"
    stage: int = 1


@dataclass(frozen=True)
class TrainedAdapter(Up):
    """What local training made of the adapter (Algorithm 1, lines 4 to 9)."""

    row: Tensor = leaves(  # (1, d)
        "trained parameters of the layers the client holds, R_1..R_k and R_N",
        reveals=Reveals.PARAMETERS,
        depends_on={"optimizer", "catalogue"},
    )
    loss: Tensor = leaves(  # (1,)
        "mean training loss L_c",
        reveals=Reveals.MEASUREMENT,
        depends_on={"optimizer", "catalogue"},
    )
    examples: Tensor = leaves(  # (1,) int64
        "number of training examples |D_c|", reveals=Reveals.STEPS
    )


@dataclass(frozen=True)
class OrganisationReport(RankingReport):
    """Quality of a client's recommendations, mean over its users; NaN without one to measure."""

    recall: Tensor = leaves(  # (1, K) float64
        "Recall@k", reveals=Reveals.MEASUREMENT, depends_on={"catalogue"}
    )
    ndcg: Tensor = leaves(  # (1, K) float64
        "NDCG@k", reveals=Reveals.MEASUREMENT, depends_on={"catalogue"}
    )
    users: Tensor = leaves("number of users measured", reveals=Reveals.STEPS)  # (1,) int64


@dataclass(frozen=True)
class Workshop(Private):
    """What a client keeps from round to round.

    Attributes:
        optimizer: state of its optimizer, or None where it starts anew in every round.
        catalogue: ``(1, n_items, h)`` item embeddings, frozen since stage 2 began; None in stage 1.
    """

    optimizer: RowState | None
    catalogue: Tensor | None = None
