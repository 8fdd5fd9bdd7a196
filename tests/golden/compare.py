"""Short runs of every paper against their recorded numbers, bit for bit.

    python tests/golden/compare.py [--record] [--only PAPER] [--json]

A change that should move no number, as one that moves modules, is checked by this. The runs are
those of the ``coterie`` beside the interpreter, so that one file can record with the code before a
change and compare with the code after it. They need 6 to 8 minutes, most of it for imports.

Numbers are the metrics of ``summary.json`` and the last row of ``metrics.csv`` without what is
measured on a clock. On a machine whose floating-point arithmetic may differ from that of the
recording, they are compared up to `TOLERANCE` only, and even that may fail rightly: one item that
changes its rank moves a metric by more. Then record both, before the change and after it.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch

RECORDING = Path(__file__).with_name("metrics.json")
TOLERANCE = 1e-5
UNREPEATABLE = ("seconds", "memory")
"""Columns with one of these words differ from run to run."""
DATA_FILES = {"ml-100k": "ml-100k/u.data"}
ALWAYS = (
    *("--seed", "0", "--engine.threads", "1"),
    *("--logger.wandb", "off", "--run.progress", "false"),
    *("--engine.kernels", "off"),  # whose last bits differ
)

Values = dict[str, float]

_HALVES = "inner products of both halves are added, no longer taken of whole rows"
_OFFSETS = "a ragged upload counts one offset a client, not one more for every chunk of clients"
_FITTED = "users fit their vectors to train and validation items before the test"


def _tests(**values: float) -> dict[str, tuple[float, str]]:
    """Name what stands both in the last row and in the summary."""
    return {
        f"{where} test/{name.replace('_at_', '@')}": (value, _FITTED)
        for where in ("last row", "summary")
        for name, value in values.items()
    }


NAMED: dict[str, dict[str, tuple[float, str]]] = {
    "pplr/sample/fedpergnn": {
        "last row cost/up_bytes_total": (77414528.0, _OFFSETS),
        "summary test/imbalance": (1.093785883147586, _FITTED),
        **_tests(
            recall_at_10=0.05787256655520128,
            recall_at_20=0.10293244679472224,
            ndcg_at_10=0.047643394104412255,
            ndcg_at_20=0.06462240859083564,
        ),
    },
    "pplr/ml-100k/fedpergnn": {
        "last row cost/up_bytes_total": (587198144.0, _OFFSETS),
        **_tests(
            recall_at_10=0.008258956486742247,
            recall_at_20=0.01420036051742104,
            ndcg_at_10=0.02256644351761386,
            ndcg_at_20=0.026751667946854917,
        ),
    },
    "pplr/sample/pplr-split": {"last row pplr/similarity": (0.5107163873035527, _HALVES)},
}
"""Numbers that were moved on purpose since the recording: run -> key -> what it is now, why."""


@dataclass(frozen=True)
class Run:
    """One run of ``coterie train``.

    Attributes:
        name: paper, data set and method; the key in the recording.
        flags: after the name of the paper, without those that all runs have.
        data: set that must be in ``$COTERIE_DATA``; None where nothing is needed.
    """

    name: str
    flags: tuple[str, ...]
    data: str | None = None

    @property
    def paper(self) -> str:
        """Name of the paper."""
        return self.name.partition("/")[0]


def _runs() -> Iterator[Run]:
    # More rounds than patience: some blocks end early, all four are trained.
    blocks = ("--rounds", "8", "--patience", "3")
    for method in ("f3crec", "ft", "reg", "kd"):
        yield Run(f"f3crec/sample/{method}", ("--method", method, *blocks))
        flags = ("--method", method, "--data", "ml-100k", *blocks)
        yield Run(f"f3crec/ml-100k/{method}", flags, "ml-100k")
    # Private heads, drawn clients, clipping and noise: code that the runs above do not reach.
    noise = ("--privacy.clip", "1", "--privacy.noise", "laplace", "--privacy.scale", "0.1")
    head = ("--model.name", "pfedrec", "--participation", "0.5")
    yield Run("f3crec/sample/pfedrec-noise", (*head, *noise, "--rounds", "4"))

    model = ("--rounds", "2", "--pretrain.steps", "100")
    own = {  # settings of methods without a language model, which have rounds of their own
        "fedmf": ("--fedmf.rounds", "20"),
        "fedpergnn": ("--fedpergnn.rounds", "10"),
    }
    for method in ("pplr", "fedavg", "fedmf", "fedpergnn"):
        flags = ("--method", method, *own.get(method, model))
        yield Run(f"pplr/sample/{method}", flags)
        yield Run(f"pplr/ml-100k/{method}", (*flags, "--data", "ml-100k"), "ml-100k")
    yield Run("pplr/sample/pplr-split", (*model, "--model.layers", "3", "--split.k", "1"))

    # Agents that learn from round 3 on instead of 37.
    game = ("--rounds", "4", "--client_agent.warm_up", "2", "--server_agent.warm_up", "2")
    yield Run("page/synthetic/page", game)
    for method in ("fedavg", "scaffold", "ditto"):
        yield Run(f"page/synthetic/{method}", ("--method", method, "--rounds", "2"))
    agents = ("--method", "dap-fl", "--rounds", "3", "--dap_fl.agent.warm_up", "1")
    yield Run("page/synthetic/dap-fl", agents)


RUNS = {run.name: run for run in _runs()}
# The quickest of each paper that trains by the paper's own method.
QUICK = ("f3crec/sample/f3crec", "pplr/sample/pplr", "page/synthetic/page")


class RunFailed(Exception):
    """A run came to no end; the message is its last line."""


@dataclass(frozen=True)
class Difference:
    """One number that is not what was recorded.

    Attributes:
        key: name of the number.
        recorded: what it was; None where the key is new.
        found: what it is; None where the key is missing.
    """

    key: str
    recorded: float | None
    found: float | None

    @property
    def size(self) -> float:
        """Relative difference; infinite where there is none to speak of."""
        if self.recorded is None or self.found is None:
            return math.inf
        scale = max(abs(self.recorded), abs(self.found))
        size = abs(self.recorded - self.found) / scale if scale else 0.0
        return math.inf if math.isnan(size) else size

    def __str__(self) -> str:
        if self.recorded is None:
            return f"{self.key} is new"
        if self.found is None:
            return f"{self.key} is missing"
        return f"{self.key} {self.recorded!r} -> {self.found!r} ({self.size:.1e})"


def differences(
    recorded: Mapping[str, float], found: Mapping[str, float], tolerance: float | None = None
) -> list[Difference]:
    """Compare the numbers of a run.

    Args:
        recorded: what they were.
        found: what they are.
        tolerance: largest relative difference that counts as equal; None compares bits.

    Returns:
        what differs, missing and new keys and the largest differences first.
    """
    keys = set(recorded) | set(found)
    pairs = [Difference(key, recorded.get(key), found.get(key)) for key in keys]
    different = [pair for pair in pairs if not _equal(pair, tolerance)]
    return sorted(different, key=lambda pair: (-pair.size, pair.key))


def _equal(pair: Difference, tolerance: float | None) -> bool:
    if pair.recorded is None or pair.found is None:
        return False
    # Not `==`: a NaN equals itself here, and 0.0 is not -0.0.
    if pair.recorded.hex() == pair.found.hex():
        return True
    return tolerance is not None and pair.size <= tolerance


def machine() -> dict[str, str]:
    """Return what the bits of a result may depend on besides the code.

    The capability is that of torch's own kernels; MKL chooses its own by the maker of the CPU too.
    """
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "scipy": version("scipy"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_vendor": _cpu_vendor(),
    }


def _cpu_vendor() -> str:
    lines = Path("/proc/cpuinfo")
    if lines.is_file():
        for line in lines.read_text().splitlines():
            if line.startswith("vendor_id"):
                return line.partition(":")[2].strip()
    return platform.processor()


def absent(run: Run) -> str | None:
    """Return why the data of a run are not at hand; None if they are."""
    if run.data is None:
        return None
    root = os.environ.get("COTERIE_DATA")
    if not root:
        return f"{run.data}: COTERIE_DATA is not set"
    file = Path(root, DATA_FILES[run.data])
    return None if file.is_file() else f"{run.data}: not in COTERIE_DATA"


def execute(run: Run) -> Values:
    """Train, in a process and a folder of its own, and return the numbers.

    Raises:
        RunFailed: there is no ``coterie`` beside the interpreter, or it stopped with an error.
    """
    program = shutil.which("coterie", path=str(Path(sys.executable).parent))
    if program is None:
        raise RunFailed("no coterie beside the interpreter: install ./shared and ./packages/*")
    hidden = ("COTERIE_", "WANDB_", "PYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    # Libraries that do not ask torch how many threads there are split their sums by them.
    env |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    if run.data is not None:
        env["COTERIE_DATA"] = str(Path(os.environ["COTERIE_DATA"]).resolve())
    with tempfile.TemporaryDirectory(prefix="coterie-golden-") as folder:
        command = [program, "train", run.paper, *run.flags, *ALWAYS, "--run.out", "out"]
        # Not in the checkout: configurations must come from the installed packages.
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise RunFailed(said[-1] if said else f"exit status {done.returncode}")
        [summary] = Path(folder, "out", run.paper).glob("*/summary.json")
        return read_numbers(summary.parent)


def read_numbers(folder: Path) -> Values:
    """Read the numbers of a run's folder that are the same in every repetition."""
    metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    with (folder / "metrics.csv").open(newline="") as file:
        *_, last = csv.DictReader(file)
    # JSON has no NaN, so summary.json holds null for it.
    numbers = {
        f"summary {key}": math.nan if value is None else value for key, value in metrics.items()
    }
    numbers |= {f"last row {key}": value for key, value in last.items() if value != ""}
    return {
        key: float(value)
        for key, value in sorted(numbers.items())
        if not any(word in key for word in UNREPEATABLE)
    }


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        name: of the run.
        state: ``equal``, ``different``, ``failed``, ``skipped``, ``recorded`` or ``unrecorded``.
        text: one line more about it.
        seconds: of the run.
        same_bits: whether it equals the recording bit for bit.
        differences: from the recording, the largest first.
    """

    name: str
    state: str
    text: str = ""
    seconds: float = 0.0
    same_bits: bool = False
    differences: tuple[Difference, ...] = ()

    @property
    def good(self) -> bool:
        """Whether nothing speaks against the code."""
        return self.state in ("equal", "skipped", "recorded")


def check(run: Run, recording: Recording) -> Outcome:
    """Execute a run and compare it, by bits where the recording is of such a machine."""
    if run.name not in recording.runs:
        return Outcome(run.name, "unrecorded", "record it with --record")
    if why := absent(run):
        return Outcome(run.name, "skipped", why)
    start = time.perf_counter()
    try:
        found = execute(run)
    except RunFailed as error:
        return Outcome(run.name, "failed", str(error), time.perf_counter() - start)
    seconds = time.perf_counter() - start
    named = NAMED.get(run.name, {})
    recorded = recording.runs[run.name] | {key: value for key, (value, _) in named.items()}
    exact = not recording.other_machine()
    different = tuple(differences(recorded, found, None if exact else TOLERANCE))
    same_bits = not differences(recorded, found)
    if not different:
        how = f"{len(found)} numbers" if same_bits else f"up to {TOLERANCE:g}, not bit for bit"
        how += "".join(f"; {key}: {why}" for key, (_, why) in named.items())
        return Outcome(run.name, "equal", how, seconds, same_bits)
    text = f"{len(different)} of {len(recorded | found)} numbers, first {different[0]}"
    return Outcome(run.name, "different", text, seconds, False, different)


@dataclass(frozen=True)
class Recording:
    """The content of `RECORDING`.

    Attributes:
        machine: see `machine`.
        runs: the numbers of each.
    """

    machine: dict[str, str]
    runs: dict[str, Values]

    @classmethod
    def read(cls) -> Recording:
        """Read the file; nothing is recorded where there is none."""
        if not RECORDING.is_file():
            return cls(machine(), {})
        content = json.loads(RECORDING.read_text())
        runs = {
            name: {key: float(value) for key, value in values.items()}
            for name, values in content["runs"].items()
        }
        return cls(content["machine"], runs)

    def write(self) -> None:
        """Write the file: a line for each number, which is what a diff should show."""
        content = {"machine": self.machine, "runs": {k: self.runs[k] for k in sorted(self.runs)}}
        RECORDING.write_text(json.dumps(content, indent=0, separators=(",", ":")) + "\n")

    def other_machine(self) -> list[str]:
        """Return how this machine differs from the recording's, a line for each fact."""
        here = machine()
        return [
            f"{name}: {self.machine.get(name)} recorded, {here.get(name)} here"
            for name in sorted(self.machine | here)
            if self.machine.get(name) != here.get(name)
        ]


def record(runs: Sequence[Run], recording: Recording) -> Iterator[Outcome]:
    """Execute the runs and put their numbers into the recording."""
    for run in runs:
        if why := absent(run):
            yield Outcome(run.name, "skipped", why)
            continue
        start = time.perf_counter()
        try:
            recording.runs[run.name] = execute(run)
        except RunFailed as error:
            yield Outcome(run.name, "failed", str(error), time.perf_counter() - start)
            continue
        text = f"{len(recording.runs[run.name])} numbers"
        yield Outcome(run.name, "recorded", text, time.perf_counter() - start, True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the list; return 1 if something differs or a run failed, else 0."""
    given = _parse(argv)
    runs = [run for run in RUNS.values() if given.only in (None, run.paper)]
    recording = Recording.read()
    other = recording.other_machine()
    if given.record:
        everything = given.only is None and not any(map(absent, runs))
        if other and not everything:
            sys.stderr.write("error: of another machine, record everything: " + _join(other) + "\n")
            return 1
        known = {} if everything else recording.runs
        recording = Recording(machine(), dict(known))
        outcomes = record(runs, recording)
    else:
        outcomes = (check(run, recording) for run in runs)
    say = (lambda text: None) if given.json else _line
    if other and not given.record:
        say(f"The recording is of another machine, compared up to {TOLERANCE:g}: {_join(other)}")
    done = []
    for outcome in outcomes:
        done.append(outcome)
        say(f"{outcome.name:28} {outcome.state:10} {outcome.seconds:5.0f} s  {outcome.text}")
        for difference in outcome.differences[1:4]:
            say(f"{'':50}{difference}")
    # A run that is no longer in the list would otherwise never be missed.
    gone = [] if given.only or given.record else sorted(recording.runs.keys() - RUNS.keys())
    done += [Outcome(name, "missing", "recorded, but not in the list") for name in gone]
    for outcome in done[len(runs) :]:
        say(f"{outcome.name:28} {outcome.state:10} {outcome.text}")
    good = all(outcome.good for outcome in done)
    if given.record and good:
        recording.write()
    say(_total(done))
    if given.json:
        report = {"good": good, "other_machine": other, "runs": [asdict(one) for one in done]}
        _line(json.dumps(report, indent=1))
    return 0 if good else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="write metrics.json anew")
    papers = sorted({run.paper for run in RUNS.values()})
    parser.add_argument("--only", choices=papers, help="the runs of one paper")
    parser.add_argument("--json", action="store_true", help="print a report for programs")
    return parser.parse_args(argv)


def _join(facts: Sequence[str]) -> str:
    return "; ".join(facts)


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()  # minutes pass between two lines


def _total(done: Sequence[Outcome]) -> str:
    count: dict[str, int] = {}
    for outcome in done:
        count[outcome.state] = count.get(outcome.state, 0) + 1
    states = ", ".join(f"{number} {state}" for state, number in count.items())
    bits = sum(outcome.same_bits for outcome in done)
    seconds = sum(outcome.seconds for outcome in done)
    equal = f", {bits} bit for bit" if count.get("equal") else ""
    return f"{len(done)} runs: {states}{equal}; {seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
