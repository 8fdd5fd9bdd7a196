"""Settings of what stands in for the mean of what clients send. Torch-free; docstrings are help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.settings.sections import between


@dataclass(frozen=True)
class AggregateSettings:
    """What a server makes of uploads of which some may be made up.

    Raises:
        UserError: a value is out of range, or has no effect.
    """

    rule: Literal["none", "mean", "median", "trimmed-mean", "krum", "multi-krum"] = "none"
    """What stands in for the mean over clients: the mean of uploads whose norms are bounded, the
    median or the trimmed mean of each number, the upload that is nearest to its neighbours, or the
    mean of those that are. Clients then count alike in all but the mean, as how many samples one
    has is what it says itself. None: the method's own mean."""
    norm_bound: float | None = None
    """Largest L2 norm of an upload; what is longer is scaled down to it, before the rule. Default
    is, where there is a rule, the median of the norms of the round; .inf bounds nothing."""
    attackers: float = 0.3
    """Share of clients that may lie, below .5: so many are cut off at both ends by the trimmed
    mean, and are not looked at by krum."""
    over: Literal["clients", "nodes"] = "clients"
    """Whose uploads the rule compares: each client's, which then leaves its process or machine as
    it is; or the means of processes or machines, so that the server sees no single client's, and
    a machine counts once, however many clients it says it has."""

    secret: bool = False
    """Processes or machines, three at least, hide what they sum behind masks, so that the server
    learns the sum of all alone. A round in which one of them gives no answer is tried again."""

    def __post_init__(self) -> None:
        between("aggregate.norm_bound", self.norm_bound, 0, float("inf"))
        if not 0 < self.attackers < 0.5:
            raise UserError(
                f"'aggregate.attackers' must be above 0 and below 0.5, not {self.attackers:g}: no "
                "rule tells a majority of liars"
            )
        fresh = AggregateSettings.__dataclass_fields__
        if self.attackers != fresh["attackers"].default and self.rule in ("none", "mean", "median"):
            raise UserError(
                "'aggregate.attackers' has no effect without a rule that counts them: leave it "
                "out, or set aggregate.rule to trimmed-mean, krum or multi-krum"
            )
        if self.acts:
            if self.secret:
                raise UserError(
                    "'aggregate.secret' hides what a rule would compare: leave one of them out"
                )
            return
        if self.over != fresh["over"].default:
            raise UserError(
                "'aggregate.over' has no effect without a rule: leave it out, or set aggregate.rule"
            )

    @property
    def acts(self) -> bool:
        """Whether anything stands in for the method's mean."""
        return self.rule != "none" or self.norm_bound is not None
