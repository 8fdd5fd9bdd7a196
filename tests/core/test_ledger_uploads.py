"""The ledger counts uploads as they leave, after noise and padding made more of them."""

from __future__ import annotations

import pytest
import torch
from tests.core.linear_client import LinearClient, Slope
from tests.hosted import Hosts, each_alone, make_folders

from coterie.core.data.samples.samples import SampleData
from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.in_process import InProcess
from coterie.core.federation.ledger import Ledger
from coterie.core.privacy.build import middleware
from coterie.core.protocol.card import Card
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.uploads import Sum
from coterie.core.settings.schema import build
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key

CLIENTS, N, D, FLOAT, ROW_NUMBER = 3, 6, 3, 4, 4
SECRET = Key.from_seed(8).fold("clients")
IDS = torch.tensor([3, 8, 11])
STEPS = LinearClient.steps()
NOISE = {"clip": 1.0, "noise": "laplace", "scale": 0.5}
PADDED = NOISE | {"uploads": "padded", "padded_rows": 5}


def data() -> SampleData:
    samples = [{"x": torch.full((4, D), float(c)), "y": torch.ones(4)} for c in range(CLIENTS)]
    return SampleData.from_clients(samples, IDS.tolist())


def exchange(kind: str, privacy: dict, folder) -> InProcess | Hosts:
    if kind == "behind bytes":
        card = Card("toy", {f"privacy.{name}": value for name, value in privacy.items()})
        half = "tests.core.linear_client:make_client"
        return Hosts(make_folders(folder, {0: data()}, SECRET, each_alone(IDS), card, half=half))
    layers = middleware(build(PrivacySettings, privacy), STEPS)
    chunk = 2 if kind == "chunks" else None
    return InProcess(LinearClient(), {0: data()}, SECRET.fold, chunk, layers)


def ask(found: InProcess | Hosts, **options):
    cohort = ExchangeCohort(found, found.present(0), (0, 1), Ledger(), Journal())
    cohort.enrol()
    replies = cohort.ask(STEPS["update"], Slope({"linear.w": torch.zeros(D)}), **options)
    up = {row["field"]: row["bytes"] for row in cohort.ledger.rows() if row["direction"] == "up"}
    return replies, up


@pytest.mark.parametrize("reduce", [None, Sum()], ids=["kept", "sum"])
@pytest.mark.parametrize("kind", ["whole", "chunks", "behind bytes"])
@pytest.mark.parametrize(
    ("privacy", "of_rows"),
    [(NOISE, CLIENTS * N * D * FLOAT), (PADDED, CLIENTS * 5 * (D * FLOAT + ROW_NUMBER))],
    ids=["dense", "padded"],
)
def test_bytes_are_those_of_the_noisy_upload(kind, privacy, of_rows, reduce, tmp_path):
    _, up = ask(exchange(kind, privacy, tmp_path), **({"reduce": reduce} if reduce else {}))
    assert up == {"change": CLIENTS * D * FLOAT, "rows": of_rows, "loss": CLIENTS * FLOAT}


def test_without_noise_the_touched_rows_are_counted(tmp_path):
    """Fewer than what noise makes of them, or the test above would tell nothing."""
    for kind in ("whole", "chunks", "behind bytes"):
        replies, up = ask(exchange(kind, {}, tmp_path / kind))
        touched = int((replies.up.rows.dense() != 0).any(2).sum())
        assert 0 < touched < CLIENTS * 5
        assert up["rows"] == touched * (D * FLOAT + ROW_NUMBER)
