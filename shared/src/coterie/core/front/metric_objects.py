"""Metric objects of torchmetrics in the steps of a module: of one step at a time, put together.

A metric object remembers what it saw, and a module's is copied, shared by clients, and called on
samples to train and to measure alike. So each step has its metrics as new, and what they hold
afterwards goes with what the step logs: sums and lists of several batches of a client make the
metric of all its samples, as `self.log` of an object has it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError

_LEAST, _MOST = "dim_zero_min", "dim_zero_max"
_SUM, _CAT = "dim_zero_sum", "dim_zero_cat"


def is_metric(value: object) -> bool:
    """Whether something is a metric object, or a collection of them."""
    metrics = sys.modules.get("torchmetrics")  # who has one has imported it
    return metrics is not None and isinstance(value, metrics.Metric | metrics.MetricCollection)


def metrics_in(module: nn.Module) -> list[nn.Module]:
    """All metric objects of a module: parts of it, and those in its lists and dicts."""
    if "torchmetrics" not in sys.modules:
        return []
    found: dict[int, nn.Module] = {}
    for part in module.modules():
        beside = [value for value in vars(part).values() if isinstance(value, list | tuple | dict)]
        inside = [one.values() if isinstance(one, dict) else one for one in beside]
        for one in (part, *(value for values in inside for value in values if is_metric(value))):
            if is_metric(one):
                found |= {id(inner): inner for inner in one.modules() if is_metric(inner)}
    return list(found.values())


@contextmanager
def as_new(metrics: Iterable[nn.Module]) -> Iterator[None]:
    """Have metric objects as new inside, and afterwards as they were, to the same tensors."""
    before = [(metric, dict(vars(metric))) for metric in metrics]
    try:
        for metric, _ in before:
            for name, default in getattr(metric, "_defaults", {}).items():
                # A list of its own, for reset() empties the one that is there.
                vars(metric)[name] = default.detach().clone() if isinstance(default, Tensor) else []
        for metric, _ in before:
            metric.reset()  # type: ignore[operator]
        yield
    finally:
        for metric, attributes in before:
            vars(metric).clear()
            vars(metric).update(attributes)


@dataclass(frozen=True)
class Seen:
    """What a metric object saw in one step.

    Attributes:
        name: under which it is logged.
        value: of it, whatever it is.
        metric: the object; as new, outside of the step.
        states: what it held, by name.
    """

    name: str
    value: Any
    metric: Any
    states: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, metric: Any) -> Seen:
        """Look at a metric object in a step, after it was updated.

        Raises:
            UserError: it was not, or is a collection.
        """
        if not hasattr(metric, "_defaults"):
            raise UserError(
                f"self.log('{name}', ...) got a {type(metric).__name__}: log its metrics by "
                "self.log_dict"
            )
        if not metric.update_called:
            raise UserError(
                f"self.log('{name}', ...) got a {type(metric).__name__} that the step did not "
                "update: call it, or its update, with the batch"
            )
        states = {state: getattr(metric, state) for state in metric._defaults}
        return cls(name, metric.compute(), metric, states)

    def rows(self, size: int) -> dict[str, Tensor]:
        """The states as fields of a batch, ``(B, ...)``, which `put_together` takes.

        Args:
            size: B.

        Raises:
            UserError: they cannot be put together from batches.
        """
        found: dict[str, Tensor] = {}
        for state, value in self.states.items():
            how = _reduction(self.metric, state)
            if how == _CAT and isinstance(value, list) and value:
                joined = torch.cat([one.detach().reshape(-1, *one.shape[1:]) for one in value])
                if len(joined) != size:
                    raise self._apart(f"{len(joined)} rows of {size} samples in '{state}'")
                found[state] = joined
            elif how in (_SUM, _LEAST, _MOST) and isinstance(value, Tensor):
                whole = value.detach().expand(size, *value.shape)
                if how == _SUM:
                    first = torch.arange(size, device=value.device) == 0
                    whole = whole * first.reshape(-1, *[1] * value.dim()).to(value.dtype)
                found[state] = whole
            else:
                raise self._apart(f"'{state}'")
        if not found:
            raise self._apart("nothing of its own")
        return found

    def _apart(self, what: str) -> UserError:
        return UserError(
            f"self.log('{self.name}', ...) got a {type(self.metric).__name__}, which holds {what} "
            "and cannot be put together from batches: log its value of the batch, metric(...)"
        )


def put_together(metric: Any, rows: Mapping[str, Tensor]) -> Any:
    """The value of a metric object of all samples of which there are `Seen.rows`.

    Args:
        metric: is copied.
        rows: of one batch or of several, one after the other.
    """
    whole = copy.deepcopy(metric).to(next(iter(rows.values())).device)
    whole.reset()
    for state, values in rows.items():
        how = _reduction(whole, state)
        if how == _CAT:
            found: Any = [values]
        elif how == _SUM:
            found = values.sum(0, dtype=values.dtype)
        else:
            found = values.amax(0) if how == _MOST else values.amin(0)
        setattr(whole, state, found)
    whole._update_count = 1
    return whole.compute()


def _reduction(metric: Any, state: str) -> str:
    return getattr(metric._reductions[state], "__name__", "")
