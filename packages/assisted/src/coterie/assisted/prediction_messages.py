"""What crosses when cells are predicted, and what is measured, with or without peers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.assisted.aae.training import Trained
from coterie.assisted.messages import PLACES, Met, PerPeer, Places, Total
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.uploads import counted, measured
from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.messages import (
    EVERYTHING,
    Down,
    ListStep,
    Private,
    Report,
    Reveals,
    Up,
    carries,
    leaves,
)
from coterie.core.protocol.uploads import Number, Sized
from coterie.core.tensors.appended import Appended


@dataclass(frozen=True)
class Held:
    """Held-out ratings with their scores; sent where ``evaluation`` is pooled only.

    Attributes:
        rows: ``(n,)`` int64 numbers of the users (or items) in the data set, so that rankings are
            of whole rows also where organisations do not know that theirs are the same.
        ratings: ``(n,)``.
        scores: ``(n,)``.
        relevant: ``(n,)`` bool, whether the rating is good enough to be found.
    """

    rows: Tensor
    ratings: Tensor
    scores: Tensor
    relevant: Tensor


@dataclass(frozen=True)
class Quality(Report):
    """What an organisation measured on its held-out cells."""

    rmse: Tensor = measured("RMSE of ratings", EVERYTHING)  # ()
    accuracy: Tensor = measured("share of cells whose sign is right", EVERYTHING)  # ()
    ap: Tensor = measured("MAP@10 over its rows", EVERYTHING)  # ()
    ndcg: Tensor = measured("NDCG@10 over its rows", EVERYTHING)  # ()
    cells: Tensor = counted("number of held-out cells")  # () int64
    rows: Tensor = counted("number of rows with a held-out cell")  # () int64
    held: Held | None = leaves(
        "held-out ratings and their scores, where evaluation is pooled (not by default)",
        reveals=Reveals.RATINGS,
        depends_on=EVERYTHING,
    )


@dataclass(frozen=True)
class Tested(Down):
    """Which round's predictions are wanted."""

    round: int = carries("t; predictions use the models of rounds 1 to t")


@dataclass(frozen=True)
class Query(Up):
    """Cells that an organisation wants predicted (prediction stage)."""

    cells: Places = leaves("cells it wants outputs for", reveals=Reveals.PATTERN, expected=PLACES)


@dataclass(frozen=True)
class Queries(Down):
    """Cells that others want predicted."""

    queries: dict[str, Places] = carries("cells to answer for", relays=True)
    round: int = carries("t; the models of rounds 1 to t answer")
    cells: dict[str, int] = carries("number of outputs that each waits for")
    roster: Tensor | None = carries(  # (R,) int64
        "who answers, and so shares masks (protect.sum)", default=None
    )
    attempt: int = carries("how often this was asked before (protect.sum)", default=0)


@dataclass(frozen=True)
class Answers(Up):
    """Outputs of the models of all rounds (prediction stage), in one of two forms as `Fits`."""

    values: PerPeer | None = leaves(  # each (t, n)
        "outputs of the models of rounds 1 to t at the cells of each peer",
        reveals=Reveals.FITS,
        depends_on={"models", "peers", "shared"},
        expected=Sized(2, "cells"),
        relays=True,
    )
    masked: PerPeer | None = leaves(  # each (t, n)
        "in their place (protect.sum): outputs behind masks that cancel in the sum over peers",
        reveals=Reveals.SEALED,
        depends_on={"models", "peers", "shared"},
        expected=Sized(2, "cells", dtype="int64"),
    )
    rounds: Tensor = leaves(
        "rounds of which it has a model",
        reveals=Reveals.NOTHING,
        expected=Number(1, dtype="int64"),
    )  # (t,)


@dataclass(frozen=True)
class Predictions(Down):
    """What to measure: the newest validation scores, or those of the test by others' models."""

    split: Split = carries("which cells, valid or test")

    values: PerPeer = carries("outputs of each, for rounds 1 to t", relays=True)  # each (t_j, n)
    rounds: PerPeer = carries("rounds of which each has a model", relays=True)  # each (t_j,)
    round: int = carries("t")
    total: Total | None = carries(  # (t, n)
        "in place of outputs (protect.sum): their sum over peers, which only it can read",
        default=None,
    )


QUERY = ListStep("query", Tested, Query)
ANSWER = ListStep("answer", Queries, Answers)
MEASURE = ListStep("measure", Predictions, Quality)


@dataclass(frozen=True)
class Epochs(Down):
    """Go on training, for as many epochs as the settings say."""

    round: int = carries("t")


@dataclass(frozen=True)
class Loss(Report):
    """How well an organisation fits its own ratings."""

    loss: Tensor = measured("mean training loss L_k over the steps of the round", EVERYTHING)
    cells: Tensor = counted("number of its training cells")  # () int64


@dataclass(frozen=True)
class ApartState(Private):
    """What stays with an organisation that trains on by itself.

    Attributes:
        learned: its model and the state of the optimizer.
        best: the model of the best round so far; what is tested.
    """

    learned: Trained
    best: Params


@dataclass(frozen=True)
class ReceiverState(ApartState, Met):
    """What stays with an organisation that was sent residuals once.

    Attributes:
        received: number of an organisation -> its residuals ``(n,)``; one entry, or none before.
    """

    received: Appended[PerPeer]


TRAIN = ListStep("train", Epochs, Loss)
KEEP_BEST = ListStep("keep_best", None, None)
