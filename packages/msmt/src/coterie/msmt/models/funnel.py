"""Which networks need tasks that follow from one another."""

from __future__ import annotations

from coterie.core.errors import UserError
from coterie.msmt.data.schema import Schema


def require_funnel(schema: Schema, network: str) -> None:
    """Refuse a schema whose tasks do not follow from one another.

    Args:
        schema: form of the samples.
        network: which network needs it, for the message.

    Raises:
        UserError: the schema is no funnel.

    Example:
        >>> require_funnel(Schema(("click", "buy"), ("NL",), (4,), 0, funnel=True), "ESMM")
    """
    if not schema.funnel:
        raise UserError(
            f"{network} needs tasks that follow from one another, as click and conversion: choose "
            "another 'model.name' for these data"
        )
