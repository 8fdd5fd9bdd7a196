"""What is not finite does not cross between the parts of a split model."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.errors import UserError


class Diverged(UserError):
    """A client's numbers are not finite any more, be it in its own layers or in the server's.

    An organisation that trains or measures answers it as a whole model would, with an upload that
    the guard refuses; everywhere else it is one line.
    """


def finite(what: str, tensor: Tensor) -> Tensor:
    """Give a tensor back.

    Raises:
        Diverged: it has a number that is not finite.

    Example:
        >>> finite("gradient", torch.tensor([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """
    if not bool(torch.isfinite(tensor).all()):
        raise Diverged(f"{what} of a split model is not finite any more: lower the learning rate")
    return tensor
