"""Settings that every paper shares. Torch-free; the docstring of a field is its ``--help`` text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.errors import UserError


def at_least(key: str, value: float | None, low: float) -> None:
    """Check the range of a setting; None stands for a default and passes.

    Raises:
        UserError: the value is below ``low``.

    Example:
        >>> at_least("rounds", 0, 1)
        Traceback (most recent call last):
        ...
        coterie.core.errors.UserError: 'rounds' must be at least 1, not 0
    """
    if value is not None and value < low:
        raise UserError(f"'{key}' must be at least {low:g}, not {value:g}")


def between(key: str, value: float | None, low: float, high: float) -> None:
    """Check that a setting is above ``low`` and at most ``high``; None passes.

    Raises:
        UserError: it is not.

    Example:
        >>> between("participation", 1.5, 0, 1)
        Traceback (most recent call last):
        ...
        coterie.core.errors.UserError: 'participation' must be above 0 and at most 1, not 1.5
    """
    if value is not None and not low < value <= high:
        most = "" if high == float("inf") else f" and at most {high:g}"
        raise UserError(f"'{key}' must be above {low:g}{most}, not {value:g}")


@dataclass(frozen=True)
class NamedData:
    """Which data to train on."""

    name: str = "sample"
    """Name of a data set."""
    root: str | None = None
    """Folder of the data sets; default $COTERIE_DATA, else ~/.cache/coterie."""


@dataclass(frozen=True)
class DataSettings(NamedData):
    """Which interactions to train on."""

    name: str = "sample"
    """Name of a data set (`coterie data` lists them), or the path of a CSV file."""
    columns: dict[str, str] | None = None
    """Columns of a CSV file, as user=NAME,item=NAME,time=NAME."""
    min_interactions: int | None = None
    """k of the k-core filter; default is what the literature uses with the data set."""

    def __post_init__(self) -> None:
        at_least("data.min_interactions", self.min_interactions, 0)


@dataclass(frozen=True)
class EngineSettings:
    """How the clients are simulated; changes speed and memory, never the algorithm."""

    chunk: int | None = None
    """Clients that run stacked at once; default is chosen by memory."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating-point type of all parameters."""
    threads: int = 1
    """Threads of torch. The tensors of a chunk are small: one thread is as fast as two on an idle
    machine and many times faster on a busy one; more pay off for very large item tables."""

    def __post_init__(self) -> None:
        at_least("engine.chunk", self.chunk, 1)
        at_least("engine.threads", self.threads, 1)


@dataclass(frozen=True)
class PrivacySettings:
    """Clipping and noise on the uploads, applied by the client."""

    clip: float | None = None
    """Largest norm of a client's upload (L1 with Laplace noise, else L2). Noise without one hides
    but guarantees nothing, as in F³CRec, section 5.6."""
    noise: Literal["none", "laplace", "gaussian"] = "none"
    """Distribution of the noise added to an upload."""
    scale: float = 0.0
    """Scale of the noise in units of the parameters: λ of Laplace noise, σ of Gaussian noise."""
    delta: float = 1e-5
    """δ at which the accountant reports ε (gaussian only)."""
    uploads: Literal["dense", "padded"] = "dense"
    """What is sent with noise on: the whole table, which hides the touched rows among all, or
    padded_rows rows, the touched ones and random others. Without noise only touched rows travel."""
    padded_rows: int | None = None
    """Number of rows of a padded upload, the same for every client."""

    def __post_init__(self) -> None:
        between("privacy.clip", self.clip, 0, float("inf"))
        at_least("privacy.scale", self.scale, 0)
        between("privacy.delta", self.delta, 0, 1)


@dataclass(frozen=True)
class LoggerSettings:
    """Where numbers go besides metrics.csv, which is always written."""

    wandb: Literal["offline", "online", "off"] = "offline"
    """Weights & Biases: files in the run folder only, an account, or not at all."""
    project: str = "coterie"
    """Project of W&B."""
    group: str | None = None
    """Group of W&B; default is paper and data set."""
    client_rows: int = 2000
    """Most rows of the table of clients."""
    histogram_every: int = 10
    """Rounds between two histograms over clients."""

    def __post_init__(self) -> None:
        at_least("logger.client_rows", self.client_rows, 0)
        at_least("logger.histogram_every", self.histogram_every, 1)


@dataclass(frozen=True)
class RunSettings:
    """The run folder, checkpoints and progress."""

    out: str | None = None
    """Folder of all runs; default is runs."""
    name: str | None = None
    """Name of this run's folder; default is made of data set, method, backbone and seed."""
    resume: bool = False
    """Go on with a run of that name from its last checkpoint, perhaps with more rounds."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints."""
    progress: bool = True
    """Show a progress bar."""

    def __post_init__(self) -> None:
        at_least("run.checkpoint_every", self.checkpoint_every, 1)
        if self.name is not None and (self.name in ("", ".", "..") or "/" in self.name):
            raise UserError(f"'run.name' must be the name of a folder, not '{self.name}'")
