"""What is slow to import is imported by nothing that does without it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
METHODS = "registry", "ranking.fedmf", "ranking.lightfr", "ranking.fedpergnn"
CASES = {
    # So that a client's process starts fast.
    "halves of clients": (
        "import coterie.core.engines.worker, coterie.continual.client, coterie.page.methods, "
        "coterie.llm.client",
        {"lightning", "pytorch_lightning", "torchmetrics", "wandb", "pandas", "sklearn"},
    ),
    "methods": (
        f"import {', '.join(f'coterie.core.methods.{name}' for name in METHODS)}",
        {"lightning", "pandas", "sklearn", "torchmetrics", "wandb"},
    ),
    "functional metrics": (
        "import coterie.core.metrics.ranking, coterie.core.metrics.clients, "
        "coterie.core.models.mf, coterie.core.models.neumf",
        {"lightning", "torchmetrics"},
    ),
    # Half a second that small runs do without: it is imported only to run a loop.
    "kernels": (
        "import coterie.continual.client, coterie.core.run.driver\n"
        "import coterie.core.tensors.sparse_rows",
        {"numba"},
    ),
    "the sample": (
        "import coterie.core.run.serving, coterie.core.data.sources.catalogue as catalogue\n"
        "catalogue.load('sample')",
        {"pandas", "pyarrow"},
    ),
}
# torch is imported once; each case is a fork of that process and has no module of another case.
CODE = """
import json, sys, torch
from tests.forks import status

def tell(code):
    before = set(sys.modules)
    exec(code)
    print(json.dumps([sorted(before), sorted(sys.modules)]))
    sys.stdout.flush()

for code in json.loads(sys.argv[1]):
    assert status(lambda: tell(code)) == 0
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, tuple[set[str], set[str]]]:
    """Names of all modules by case: with torch alone, and at its end."""
    codes = json.dumps([code for code, _ in CASES.values()])
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", CODE, codes],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        case: (set(before), set(after)) for case, (before, after) in zip(CASES, told, strict=True)
    }


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_nothing_heavy_is_imported(imported, case):
    _, heavy = CASES[case]
    before, after = imported[case]
    assert {name.split(".")[0] for name in after} & heavy == set()
    # What is looked for was imported here, and not by a case before.
    assert not [name for name in before if name.startswith("coterie")]
    assert [name for name in after if name.startswith("coterie")]


def test_halves_of_clients_import_no_half_of_a_server(imported):
    _, after = imported["halves of clients"]
    begun = [name for name in after if name.startswith("coterie.core.run")]
    assert begun + [name for name in after if name.endswith(".algorithm")] == []
