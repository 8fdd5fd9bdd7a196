"""Scores of all items for a user, by asking the peers again."""

import pytest
import torch
from tests.assisted.small_organisations import WIDTHS, finished, make_run, make_settings, state_of

from coterie.assisted.data import Organisations
from coterie.assisted.experiment import score_users

pytestmark = pytest.mark.usefixtures("rounds_alone")


def _numbered(run, align):
    """Give the organisations global numbers of their columns, one after the other."""
    first, each = 0, []
    for one in run.newest_data.each:
        domain = one.domain
        columns = first + torch.arange(domain.train.n_columns)
        each.append(
            type(one)(one.id, one.rows, type(domain)(**vars(domain) | {"columns": columns}))
        )
        first += domain.train.n_columns
    return Organisations.of(each)


@pytest.mark.parametrize("align", ["user", "item"])
def test_a_user_gets_the_scores_that_training_ended_with(align) -> None:
    settings = make_settings(rounds=2, patience=1000)
    run = finished(make_run(settings))
    best = int(run.results["test/best_round"])
    run = make_run(make_settings(rounds=best))  # up to the best round, so that it is the last
    finished(run)
    data = _numbered(run, align)
    n_rows = data.each[0].train.n_rows
    users = torch.arange(n_rows if align == "user" else sum(WIDTHS))
    table = torch.full((len(users), sum(WIDTHS) if align == "user" else n_rows), torch.nan)
    kept = len(run.federation.client.matrices)
    for places, scores in score_users(run, data, align, users):
        table[places] = scores
    assert len(run.federation.client.matrices) == kept  # a server would ask for ever more
    table = table if align == "user" else table.T
    assert table.shape == (n_rows, sum(WIDTHS))
    for one in data.each:
        found = table[one.train.rows, one.domain.columns[one.train.columns.values]]
        torch.testing.assert_close(found.double(), state_of(run, one.id).scores, atol=1e-5, rtol=0)
