"""When a table of items is worth compiled loops: a rule that everybody comes to alike."""

from __future__ import annotations

from torch import Tensor

from coterie.continual.settings import Settings
from coterie.core.kernels import switch

# From so many items on, tables of all items' scores take longer than to load compiled loops. It is
# a number that all parties know, for how they compute changes the last bits.
MANY_ITEMS = 1000


def pays(settings: Settings, table: Tensor) -> bool:
    """Whether what is done with an item table, ``(n, d)``, is done by compiled loops."""
    if settings.engine.kernels == "off" or not switch.available():
        return False
    return table.shape[0] >= MANY_ITEMS and table.device.type == "cpu"
