"""`coterie certify-engines`: a table of digests, and a refusal where they differ."""

from __future__ import annotations

import json

import pytest

from coterie.core.cli.main import main
from coterie.core.federation.in_process import InProcess
from coterie.core.tables import jobs

SMALL = ["page", "--rounds", "2", "--data.clients", "6"]


@pytest.mark.long
def test_processes_are_certified(capsys, monkeypatch):
    monkeypatch.setattr(jobs, "_SILENCE", 0.0)
    assert main(["certify-engines", *SMALL, "--processes", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("2 rounds, the same bits\n")
    assert err == "Rounds: 1, block 0, round 1\nRounds: 2, block 0, round 2\n"
    assert main(["certify-engines", *SMALL, "--processes", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["round"] for row in rows] == [1, 2]
    for part in ("server", "clients", "journal", "ledger"):
        first, second = (row[part] for row in rows)
        assert first != second  # a digest that never moves would prove nothing
        assert len(first) == 12


@pytest.mark.long
def test_other_bits_are_an_error(capsys, monkeypatch):
    """Clients in this process that draw by other keys than those in processes."""
    enrol = InProcess.enrol

    def other(self, ids, block):
        secrets = self.secrets
        self.secrets = lambda ids: secrets(ids).fold("other")
        return enrol(self, ids, block)

    monkeypatch.setattr(InProcess, "enrol", other)
    assert main(["certify-engines", *SMALL, "--processes", "2"]) == 2
    out, err = capsys.readouterr()
    assert "≠" in out
    assert err.startswith("coterie: error: round 1 has other bits elsewhere than in one")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["f3crec", "--participation", "0.5"],
        ["pplr"],
        ["pplr", "--method", "fedmf", "--fedmf.transport", "masked_sum"],
        ["pplr", "--method", "fedpergnn"],
        ["mtal"],
        ["pf-msmtrec"],
        *(["page", "--method", name] for name in ("page", "fedavg", "ditto", "fedamp")),
    ],
    ids=" ".join,
)
def test_all_papers_are_certified(words, capsys):
    assert main(["certify-engines", *words, "--rounds", "2"]) == 0
    assert capsys.readouterr().out.endswith("rounds, the same bits\n")
