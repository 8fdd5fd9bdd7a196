"""How the server aggregates, by the options of a run."""

from __future__ import annotations

from coterie.msmt.aggregation.personalised import Rule
from coterie.msmt.settings.aggregation import AggregationOptions


def rule_of(options: AggregationOptions) -> Rule:
    """The rule for the experts' scenario parameters; the reading must be resolved."""
    assert options.increments is not None
    assert options.fedbn is not None
    return Rule(
        increments=options.increments,
        fedbn=options.fedbn,
        eps=options.eps,
        coordinate=options.coordinate,
        c=options.c,
        centre=options.centre,
        grouping="separate" if options.per_expert else "all",
    )
