"""A digest of interactions: what a run, or a result that is kept, was made from."""

from __future__ import annotations

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.tensors.digest import digest


def data_digest(interactions: Interactions) -> str:
    """Hash who touched what and when, how it was rated, all ids, and what is known of them.

    Not where the rows came from: the same rows elsewhere, or in another format, are the same data.
    Rows count in their order, which is canonical for a file of the user's own
    (`coterie.core.data.interactions.canonical`).
    """
    values = dict(vars(interactions))
    del values["source"]
    return digest(values)
