"""What crosses where a server adds up what steps of one model need; no residual of a cell does."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.assisted.prediction_messages import ApartState
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.uploads import counted, measured
from coterie.core.protocol.messages import EVERYTHING, Down, ListStep, Reveals, Up, carries, leaves
from coterie.core.protocol.uploads import Number, Shaped


@dataclass(frozen=True)
class SummedState(ApartState):
    """What stays with an organisation whose sums move one model.

    Attributes:
        unit: of residuals, ``()``; 0 before the organisations met.
    """

    unit: Tensor


@dataclass(frozen=True)
class Joining(Up):
    """What an organisation says of itself before the first round."""

    names: Tensor = leaves(  # (4,) int64
        "digest of the keyed hashes of all its users (or items), to see that all have the same",
        reveals=Reveals.SEALED,
        expected=Number(1, dtype="int64"),
    )
    rows: Tensor = counted("number of its users (or items)")  # () int64
    cells: Tensor = counted("number of its training cells")  # () int64
    square: Tensor = measured("mean square of its residuals", EVERYTHING)  # ()


@dataclass(frozen=True)
class Step(Down):
    """Begin of a round."""

    round: int = carries("t")
    shapes: dict[str, tuple[int, ...]] = carries("shapes of the sums that are expected")


@dataclass(frozen=True)
class Summands(Up):
    """Sums over an organisation's own samples; the server adds up those of all."""

    values: Params = leaves(
        "sums over its samples: gradients of autoencoders, or A Q and diag A of the distribution",
        reveals=Reveals.RESIDUALS,
        depends_on={"learned", "unit"},
        expected=Shaped("shapes"),
    )
    loss: Tensor = measured("loss that a step is to lower, over its cells", {"learned", "unit"})
    cells: Tensor = counted("number of its training cells")  # () int64
    samples: Tensor = counted("number of its samples with a training cell")  # () int64


@dataclass(frozen=True)
class Moved(Down):
    """The model as it is now."""

    round: int = carries("t")
    params: Params = carries("parameters of the model")
    unit: float = carries("root mean square of all organisations' residuals")


JOIN = ListStep("join", None, Joining)
SUM = ListStep("sum", Step, Summands)
TAKE = ListStep("take", Moved, None)
