"""What crosses the boundary between an organisation and the server, and what stays."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.local_training.row_optimizer import RowState
from coterie.core.methods.kit.uploads import counted, measured
from coterie.core.metrics.ranking_report import RankingReport, Split
from coterie.core.protocol.messages import (
    Down,
    ListStep,
    Private,
    Report,
    Reveals,
    Up,
    carries,
    leaves,
)
from coterie.core.protocol.uploads import Like, Number

OWN = "factor of log(1 + count) of the client's own users in its scores"


@dataclass(frozen=True)
class Adapters(Down):
    """The adapter that a client trains on, R_c: its own in PPLR, the same for all in FedAvg.

    What a client keeps (a head in fedavg-head, all in local) is not in it, nor in other messages.
    """

    row: Tensor = carries("parameters of the layers that the client holds")  # (d,)
    round: int = carries("t, from 0", default=0)
    pull: float = carries("λ/α_k, how near training stays to it (FedAMP)", default=0.0)
    own: float = carries(OWN, default=0.0)


@dataclass(frozen=True)
class Candidate(Down):
    """An adapter to be measured."""

    row: Tensor = carries("parameters of the layers that the client holds")  # (d,)
    split: Split = carries("on which part of the data", default="valid")
    stage: int = carries(
        "of fine-tuning; in the second, against the item embeddings that the client keeps",
        default=1,
    )
    own: float = carries(OWN, default=0.0)


@dataclass(frozen=True)
class Strengths(Down):
    """Strengths of the clients' own counts, to be compared before the first round."""

    row: Tensor = carries("parameters of the layers that the client holds")  # (d,)
    own: Tensor = carries("factors of log(1 + count) of the client's own users")  # (G,)


@dataclass(frozen=True)
class StrengthReport(Report):
    """How well a client recommends with each strength, mean over its users; NaN without any."""

    recall: Tensor = measured("Recall@10 on validation", frozenset(), Number(axes=1))  # (G,)
    squares: Tensor = measured(  # (G,)
        "mean square of what a strength gains a user over none", frozenset(), Number(axes=1)
    )
    users: Tensor = counted("number of users measured")  # () int64


_TRAINS_WITH = frozenset({"optimizer", "catalogue", "head"})


@dataclass(frozen=True)
class TrainedAdapter(Up):
    """What local training made of the adapter (Algorithm 1, lines 4 to 9)."""

    row: Tensor = leaves(  # (d,)
        "trained parameters of the layers the client holds, R_1..R_k and R_N",
        reveals=Reveals.PARAMETERS,
        depends_on=_TRAINS_WITH,
        expected=Like("row"),
    )
    loss: Tensor = measured("mean training loss L_c", _TRAINS_WITH)  # ()
    examples: Tensor = counted("number of training examples |D_c|")  # () int64


_RANKS_WITH = frozenset({"catalogue", "head", "best_head"})


@dataclass(frozen=True)
class OrganisationReport(RankingReport):
    """Quality of a client's recommendations, mean over its users; NaN without one to measure."""

    recall: Tensor = measured("Recall@k", _RANKS_WITH, Number(axes=1))  # (K,) float64
    ndcg: Tensor = measured("NDCG@k", _RANKS_WITH, Number(axes=1))  # (K,) float64
    users: Tensor = counted("number of users measured")  # () int64


@dataclass(frozen=True)
class ClientState(Private):
    """What a client keeps from round to round.

    Attributes:
        optimizer: state of its one optimizer, or None where it starts anew in every round.
        catalogue: ``(n_items, h)`` item embeddings, frozen since stage 2 began; None in stage 1.
        head: ``(h,)`` part of the adapter that is never sent, or all; None where all of it is sent.
        best_head: that of the round that was the best on validation so far.
    """

    optimizer: RowState | None
    catalogue: Tensor | None = None
    head: Tensor | None = None
    best_head: Tensor | None = None


UPDATE = ListStep("update", Adapters, TrainedAdapter)
FREEZE = ListStep("freeze", Adapters, None)
KEEP = ListStep("keep", None, None)
WEIGH = ListStep("weigh", Strengths, StrengthReport)
EVALUATE = ListStep("evaluate", Candidate, OrganisationReport)
