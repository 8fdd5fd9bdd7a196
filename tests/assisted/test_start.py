"""Round 0 of MTAL: what organisations predict without assistance competes with the rounds."""

import pytest
from tests.assisted.small_organisations import finished, make_organisations, make_run, make_settings
from tests.assisted.test_protect_sum import SUM, with_secret

from coterie.core.federation.selection import BestRound


def rmse_of_bases(run, part):
    """Of all organisations' cells together, one after the other."""
    errors = []
    for place in range(len(run.newest_data.ids)):
        data = run.newest_data[place]
        cells = getattr(data, part)
        guessed = run.federation.client.learner(data).base.at(cells)
        pairs = zip(guessed.tolist(), cells.values.tolist(), strict=True)
        errors += [(guess - true) ** 2 for guess, true in pairs]
    return (sum(errors) / len(errors)) ** 0.5


@pytest.mark.parametrize("sums", [False, True])
def test_bases_that_no_round_beats_are_tested(sums):
    """Nobody is asked for outputs then: there is no model."""
    settings, data = make_settings(), make_organisations()
    if sums:
        settings, data = make_settings(protect=SUM), with_secret()
    run = finished(make_run(settings, data))
    start = run.history[0]["start/rmse"]
    assert start == pytest.approx(rmse_of_bases(run, "valid"))
    assert start < min(row["eval/rmse"] for row in run.history)
    assert run.server_state.chosen == BestRound(0, start)
    assert run.results["test/best_round"] == 0
    assert run.results["test/rmse"] == pytest.approx(rmse_of_bases(run, "test"))
    assert "answer" not in {row["step"] for row in run.ledger.rows()}
