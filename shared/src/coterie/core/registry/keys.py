"""The vocabulary of metrics: what the keys of a run mean, and which panels show them. Torch-free.

Here stand the keys that the core itself measures; a paper adds its own (`Paper.keys`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

X_AXIS = "round"
NAMESPACES = ("fed", "start", "eval", "test", "cost", "privacy", "clients")
CLIENT_TABLE = "clients/table"


@dataclass(frozen=True)
class MetricKey:
    """One documented key.

    Attributes:
        name: as it stands in ``metrics.csv`` and in W&B; a star stands for a number or a word.
        unit: "1" for a pure number.
        meaning: one line for the documentation.
        summary: what W&B keeps of the curve besides the last value: "max", "min" or None.
    """

    name: str
    unit: str
    meaning: str
    summary: Literal["max", "min"] | None = None


@dataclass(frozen=True)
class Panel:
    """One line chart.

    Attributes:
        title: of the chart.
        keys: metric keys, one line each.
        x: key of the x axis.
        names: of the lines in pictures, in the order of the keys; () = as the keys say.
    """

    title: str
    keys: tuple[str, ...]
    x: str = X_AXIS
    names: tuple[str, ...] = ()

    def name_of(self, key: str) -> str:
        """Name a line in words.

        Example:
            >>> Panel("Bytes", ("cost/up_bytes",), names=("sent",)).name_of("cost/up_bytes")
            'sent'
            >>> Panel("Validation", ("eval/global_accuracy",)).name_of("eval/global_accuracy")
            'global accuracy'
        """
        named = dict(zip(self.keys, self.names, strict=False))
        return named.get(key, key.partition("/")[2].replace("/", " ").replace("_", " ") or key)


KEYS: tuple[MetricKey, ...] = (
    MetricKey("round", "rounds", "communication rounds so far over all blocks; the x axis"),
    MetricKey("block", "1", "data block of the round, from 0"),
    MetricKey("fed/loss", "1", "training loss, mean over the clients of the round", "min"),
    MetricKey("fed/clients", "clients", "clients whose update was accepted"),
    MetricKey("fed/refused", "answers", "answers left out in this round"),
    MetricKey("fed/online", "clients", "clients that were there, where they run elsewhere"),
    MetricKey("fed/late", "clients", "clients whose node was too late in this round"),
    MetricKey("fed/norm_bound", "1", "norm to which uploads were shortened, with aggregate.*"),
    MetricKey("fed/bounded", "uploads", "uploads, or means of nodes, that were shortened"),
    MetricKey("fed/left_out", "uploads", "the same, that Krum or Multi-Krum left out"),
    MetricKey("start/*", "1", "the same of the model that a block starts from, round 0"),
    MetricKey("eval/clients", "clients", "clients that validated, where not all did"),
    MetricKey(
        "eval/*_stream", "1", "mean over the blocks after the first of each one's best score"
    ),
    MetricKey("test/best_round", "rounds", "round that was tested; 0 is what it started from"),
    MetricKey("test/last_round", "rounds", "the same, where none was measured"),
    MetricKey("cost/up_bytes", "bytes", "sent by clients in this round"),
    MetricKey("cost/down_bytes", "bytes", "sent to clients in this round"),
    MetricKey("cost/seconds", "s", "wall time of this round"),
    MetricKey("cost/local_steps", "steps", "gradient steps of all clients in this round"),
    MetricKey("cost/up_bytes_total", "bytes", "sent by clients since the start"),
    MetricKey("cost/down_bytes_total", "bytes", "sent to clients since the start"),
    MetricKey("cost/local_steps_total", "steps", "gradient steps of all clients since the start"),
    MetricKey("cost/seconds_total", "s", "wall time of all rounds so far, without logging"),
    MetricKey("cost/wait_seconds", "s", "waited for nodes in this round"),
    MetricKey("cost/sent_bytes", "bytes", "really sent to nodes in this round"),
    MetricKey("cost/received_bytes", "bytes", "really received from nodes in this round"),
    MetricKey(
        "privacy/epsilon",
        "1",
        "ε spent so far, of the client that released most",
    ),
)

PANELS: tuple[Panel, ...] = (
    Panel("Training loss", ("fed/loss",)),
    Panel(
        "Clients accepted and refused",
        ("fed/clients", "fed/refused"),
        names=("accepted", "refused"),
    ),
    Panel("Bytes of a round", ("cost/up_bytes", "cost/down_bytes"), names=("sent", "received")),
    Panel("Seconds of a round", ("cost/seconds",)),
    Panel("ε spent", ("privacy/epsilon",)),
)


def documented(name: str, keys: Sequence[MetricKey] = KEYS) -> MetricKey | None:
    """Find the documented key; a star in it stands for a number or a word.

    Args:
        name: of a metric.
        keys: where to look.

    Example:
        >>> documented("cost/seconds").unit, documented("cost/secnods")
        ('s', None)
    """
    return next((key for key in keys if fnmatchcase(name, key.name)), None)
