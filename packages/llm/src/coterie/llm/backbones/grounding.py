"""BIGRec's grounding: from generated text to a score for every item (arXiv 2308.08434)."""

from __future__ import annotations

import torch
from torch import Tensor


def grounding_scores(
    generated: Tensor,
    items: Tensor,
    log_probability: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Score items by their nearness to generated text in the space of the frozen model.

    One generated text c a user: ``score(i) = -||c - e_i||``, as in BIGRec. Of several, each
    counts by its probability p_c: ``score(i) = t log sum_c p_c exp(-||c - e_i|| / t)``.

    Args:
        generated: ``(n, C, h)`` embeddings of the C texts generated for each user.
        items: ``(n_items, h)`` embeddings of the titles.
        log_probability: ``(n, C)`` of the texts; None counts them alike.
        temperature: t, in units of distance; without effect on one text.

    Returns:
        ``(n, n_items)`` float32.

    Example:
        >>> items = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> grounding_scores(torch.zeros(1, 1, 2), items).tolist()
        [[-0.0, -5.0]]
    """
    n, candidates, hidden = generated.shape
    # Without matrix products: those lose the exact 0 of equal texts and depend on the batch.
    distance = torch.cdist(
        generated.reshape(-1, hidden), items, compute_mode="donot_use_mm_for_euclid_dist"
    ).view(n, candidates, -1)
    if candidates == 1:
        return -distance[:, 0]
    terms = -distance / temperature
    if log_probability is not None:
        terms = terms + log_probability.log_softmax(1)[:, :, None]
    return temperature * terms.logsumexp(1)
