"""Settings that every paper shares. Torch-free; the docstring of a field is its ``--help`` text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie.core.errors import UserError

LARGEST = 2**31 - 1
"""What no count may exceed: nothing that is counted here could be held."""
LONGEST_NAME = 255
"""Bytes of the name of a file or folder, on nearly all file systems."""
MOST_THREADS = 1024
"""More than any machine has use for; libgomp breaks down somewhere above."""


def at_least(key: str, value: float | None, low: float, most: float = LARGEST) -> None:
    """Check the range of a setting; None stands for a default and passes.

    Raises:
        UserError: the value is below ``low``, or a whole number above ``most``.

    Example:
        >>> at_least("rounds", 0, 1)
        Traceback (most recent call last):
        ...
        coterie.core.errors.UserError: 'rounds' must be at least 1, not 0
    """
    if value is not None and value < low:
        raise UserError(f"'{key}' must be at least {low:g}, not {value:g}")
    if isinstance(value, int) and value > most:
        raise UserError(f"'{key}' must be at most {most}, not {value}")


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


def each_at_least(section: object, low: float, *names: str, prefix: str = "") -> None:
    """Check fields of a section by `at_least`, called by their names behind a prefix."""
    for name in names:
        at_least(prefix + name, getattr(section, name), low)


def each_positive(section: object, *names: str, prefix: str = "") -> None:
    """Check that fields of a section are above 0; None passes, see `between`."""
    for name in names:
        between(prefix + name, getattr(section, name), 0, float("inf"))


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
    """Name of a data set (`coterie data` lists them), or the path of a file (CSV, JSON lines,
    Parquet, Arrow, plain or packed), of a folder of its parts or of one made by save_to_disk of
    Hugging Face's datasets, or hf:OWNER/NAME[:CONFIG][@REVISION][#SPLIT] of their hub."""
    columns: dict[str, str] | None = None
    """Columns of a file, as user=NAME,item=NAME,time=NAME. Other roles: rating, title, genres,
    split (train, valid or test: the parts that the file gives), order (the position among the
    user's rows, in place of time) and domain (the organisation that has the item)."""
    min_rating: float | None = None
    """Lowest rating that counts as an interaction; default is any above 0."""
    min_interactions: int | None = None
    """k of the k-core filter; default is what the literature uses with the data set."""

    def __post_init__(self) -> None:
        at_least("data.min_interactions", self.min_interactions, 0)
        between("data.min_rating", self.min_rating, 0, float("inf"))
        for role in self.columns or {}:
            if why := self.unread.get(role):
                raise UserError(
                    f"'data.columns' names a column for the {role}, which is not read here, as "
                    f"{why}: leave {role}=… out"
                )

    @property
    def unread(self) -> dict[str, str]:
        """Roles of columns that would have no effect with these settings, and why."""
        return {}


@dataclass(frozen=True)
class GrowingData(DataSettings):
    """Which interactions to train on, for papers that train on one block after the other."""

    more: tuple[str, ...] = ()
    """Files of rows that came later, the oldest first; each is a block of its own, behind those of
    the data. --resume --data FILE adds one to a run."""


@dataclass(frozen=True)
class EngineSettings:
    """How the clients are simulated; changes speed and memory, never the algorithm."""

    name: Literal["in-process", "processes", "ray", "flower"] = "in-process"
    """Where clients run: in this process; in processes of their own on this machine, with their
    data, secrets and private state in folders below the run's; in actors on a Ray cluster, with
    the same folders; or on other machines, on Flower's runtime, by coterie deploy."""
    address: str | None = None
    """HOST:PORT of a Ray cluster; default is what RAY_ADDRESS names, else this machine alone."""
    processes: int | None = None
    """Processes of clients, or actors; default is one a core. An organisation is in one of them."""
    deadline: float | None = None
    """Seconds that processes or nodes have for the answers to an ask, all together; default is any
    time, and 600 on other machines. Who is late is left out of the rest of the round."""
    start: float = 60.0
    """Seconds that a process or an actor has to come up; an actor reads its data meanwhile."""
    min_clients: float | None = None
    """How many clients must be there and answer, in their proportion of every ask; up to 1 it is a
    part of all. With fewer the round is tried again, from where it began. Default is one client."""
    patience: int = 3
    """How often a round is tried before the run ends."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where tensors are made: auto is a GPU where torch has one to use, else the CPU. Results agree
    to rounding, but for dropout, whose masks a GPU draws otherwise."""
    chunk: int | None = None
    """Clients that run stacked at once; default is chosen by memory."""
    workers: int = 1
    """Processes, forked from this one, in which chunks of clients run at the same time, on the CPU;
    as many as there are cores to use. Results are the same bits; each takes the memory of a chunk.
    Data and models are in memory that all of them have in common, which needs Linux."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating-point type of all parameters."""
    threads: int = 1
    """Threads of torch. The tensors of a chunk are small: one thread is as fast as two on an idle
    machine and many times faster on a busy one; more pay off for very large item tables."""
    kernels: Literal["auto", "off"] = "auto"
    """Compiled loops (numba): they draw the same numbers, and training by them agrees to rounding.
    Small runs do without, as they take half a second to load. Off uses none."""

    max_norm: float = 1e12
    """Largest norm of the parameters that a client may upload; who sends more is left out."""
    max_count: int = 10_000_000
    """Largest number of samples that a client may say it has; who says more is left out."""

    def __post_init__(self) -> None:
        at_least("engine.chunk", self.chunk, 1)
        between("engine.max_norm", self.max_norm, 0, float("inf"))
        at_least("engine.max_count", self.max_count, 1)
        at_least("engine.workers", self.workers, 1, MOST_THREADS)
        at_least("engine.threads", self.threads, 1, MOST_THREADS)
        at_least("engine.processes", self.processes, 1, MOST_THREADS)
        at_least("engine.patience", self.patience, 1)
        for name in ("deadline", "start", "min_clients"):
            between(f"engine.{name}", getattr(self, name), 0, float("inf"))
        if self.name != "in-process":
            self._check_elsewhere()
            return
        fresh = EngineSettings.__dataclass_fields__
        for name in ("processes", "address", "deadline", "start", "min_clients", "patience"):
            if getattr(self, name) != fresh[name].default:
                raise UserError(
                    f"'engine.{name}' is for clients in processes of their own: set engine.name to "
                    "processes, or leave it out"
                )

    def _check_elsewhere(self) -> None:
        if self.workers > 1:
            raise UserError(
                "'engine.workers' are processes of a run whose clients are in its own: set "
                "'engine.processes' instead"
            )
        if self.name != "ray" and self.address is not None:
            raise UserError("'engine.address' is of a Ray cluster: set engine.name to ray")
        if self.name == "flower" and self.processes is not None:
            raise UserError(
                "'engine.processes' are of one machine: say coterie deploy --nodes instead"
            )


@dataclass(frozen=True)
class PrivacySettings:
    """Clipping and noise on the uploads, applied by the client."""

    clip: float | None = None
    """Largest norm of a client's upload (L1 with Laplace noise, else L2), or by clip_by largest
    size of each number in it. Noise without one hides but guarantees nothing, as in F³CRec, section
    5.6."""
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
    clip_by: Literal["upload", "entry"] = "upload"
    """What is clipped, and so what ε is for: a client's whole upload, scaled to a norm, or each
    entry of it, clamped to [-clip, clip]."""
    steps: tuple[str, ...] = ()
    """Steps of the method whose uploads are clipped and get noise; all if none is named. ε covers
    no other step."""
    at: Literal["client", "server"] = "client"
    """Who adds the noise: each client to its upload, against the server; or the server, once, to
    the sum of what clients clipped (DP-FedAvg), against who sees the model. That takes less noise,
    and trusts the server. The scale is then that of the noise on the sum."""

    def __post_init__(self) -> None:
        between("privacy.clip", self.clip, 0, float("inf"))
        at_least("privacy.scale", self.scale, 0)
        between("privacy.delta", self.delta, 0, 1)
        at_least("privacy.padded_rows", self.padded_rows, 1)
        if self.clip_by != "upload" and self.clip is None:
            raise UserError(
                "'privacy.clip_by' has no effect without a bound: leave it out, or set privacy.clip"
            )
        if self.at == "server":
            self._check_at_server()
        if self.steps and self.noise == "none" and self.clip is None:
            raise UserError(
                "'privacy.steps' has no effect without noise: leave it out, or set privacy.noise "
                "to laplace or gaussian"
            )
        idle = {"uploads": self.uploads != "dense", "padded_rows": self.padded_rows is not None}
        for name, changed in idle.items():
            if changed and self.noise == "none":
                raise UserError(
                    f"'privacy.{name}' has no effect without noise: leave it out, or set "
                    "privacy.noise to laplace or gaussian"
                )

    def _check_at_server(self) -> None:
        wanted = {"noise": "gaussian", "clip_by": "upload", "uploads": "dense"}
        for name, value in wanted.items():
            if getattr(self, name) != value:
                raise UserError(
                    f"'privacy.at' server takes gaussian noise on a sum of clipped uploads: set "
                    f"'privacy.{name}' to {value}"
                )
        if self.clip is None or not self.scale > 0:
            raise UserError(
                "'privacy.at' server needs a 'privacy.clip' and a positive 'privacy.scale': what "
                "nothing bounds no noise hides"
            )


@dataclass(frozen=True)
class ValidationSettings:
    """What rounds are chosen by: how often it is measured, and on how many clients.

    The final test is on all clients, whatever stands here.
    """

    every: int = 1
    """Rounds from one validation to the next; the last round that a block may have is validated
    too. The best round is the best of these. Patience counts rounds, and a block ends at a round
    that was validated."""
    clients: int = 10_000
    """Most clients that validate. Of more, so many are drawn by key, the same in every round and
    run. A mean of 10,000 has a standard error of a hundredth of the clients' spread (.002 where
    NDCG varies by .2), and rounds are compared on the same clients, so their differences err by
    less."""

    def __post_init__(self) -> None:
        at_least("validation.every", self.every, 1)
        at_least("validation.clients", self.clients, 1)


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
    model: bool = False
    """Have W&B keep what the server holds after the best round; nothing that clients keep."""
    transcript: bool = False
    """Write transcript.jsonl: a line with sender, receiver, bytes and hash for every field of every
    message. Hashing costs time."""

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
    """Go on with a run of that name from its last checkpoint, with more rounds if its data are one
    block. With --data FILE a run of blocks goes on with the rows of the file as one more block."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints."""
    progress: bool = True
    """Show a progress bar."""

    def __post_init__(self) -> None:
        at_least("run.checkpoint_every", self.checkpoint_every, 1)
        for part in Path(self.out or "").parts:
            _check_folder("run.out", part)
        if self.name is not None:
            _check_folder("run.name", self.name)
            if self.name in ("", ".", "..") or "/" in self.name:
                raise UserError(f"'run.name' must be the name of a folder, not '{self.name}'")

    @property
    def folder(self) -> Path:
        """Folder of all runs."""
        return Path(self.out or "runs").expanduser()


def _check_folder(key: str, name: str) -> None:
    """Refuse what no file system takes, or nobody can type again.

    Raises:
        UserError: it is blank, too long, or has characters that cannot be printed.
    """
    if name and not name.strip():
        raise UserError(f"'{key}' must be the name of a folder, not blank")
    if not name.replace(" ", "").isprintable() and name:
        raise UserError(f"'{key}' must be printable text in UTF-8, not {ascii(name)[:60]}")
    if len(name.encode()) > LONGEST_NAME:
        raise UserError(
            f"'{key}' has a name of {len(name.encode())} bytes, and a folder may have "
            f"{LONGEST_NAME}: shorten it"
        )
