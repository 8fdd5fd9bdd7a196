"""What is served of other papers than F³CRec: whose lists, and who is told that there is none."""

import numpy as np
import pytest
from starlette.testclient import TestClient

import coterie
from coterie.core.cli.main import main
from coterie.core.serve.app import make_app
from coterie.core.serve.limits import Limits
from coterie.core.serve.metrics import Metrics
from coterie.core.serve.opened import OpenedRun


@pytest.fixture(scope="module")
def opened(short_runs):
    """Gives a run that is served, by its paper."""
    there = {}

    def served(paper):
        if paper not in there:
            there[paper] = OpenedRun(short_runs[paper], Metrics())
        return there[paper]

    yield served
    for run in there.values():
        run.close()


def client_of(run):
    return TestClient(make_app(run, Limits(rate=1e9, burst=10**9)), base_url="http://127.0.0.1")


def as_rows(frame):
    return frame[["rank", "item", "title", "score"]].to_dict("records")


def test_an_organisations_users_are_served_and_public_ones_are_told_why(opened, short_runs):
    run = opened("pplr")
    client, data = client_of(run), run.state.recommender.experiment.data
    names = run.state.recommender.data.user_names
    assert not run.state.recommender.alike
    mine = [names[int(np.flatnonzero(data.client_of.numpy() == k)[0])] for k in (0, 1)]
    public = names[int(np.flatnonzero(data.client_of.numpy() < 0)[0])]
    library = coterie.load(short_runs["pplr"])
    for user in mine:
        found = client.get(f"/recommend/{user}", params={"top": 5})
        assert found.status_code == 200
        assert found.json()["items"] == as_rows(library.recommend([user], top=5))
    refused = client.get(f"/recommend/{public}")
    assert refused.status_code == 409
    assert "belongs to no client" in refused.json()["error"]
    lists = client.post("/recommend", json={"users": [public, mine[1]], "top": 5}).json()["lists"]
    assert (lists[0]["items"], lists[0]["notes"]) == ([], [refused.json()["error"]])
    assert lists[1] == client.get(f"/recommend/{mine[1]}?top=5").json()


def test_someone_new_is_served_by_the_largest_organisation(opened, short_runs):
    run = opened("pplr")
    items = run.state.recommender.data.item_names[:3]
    found = client_of(run).post("/new-user", json={"items": items, "top": 5})
    assert found.status_code == 200
    expected = coterie.load(short_runs["pplr"]).recommend_new(items, top=5)
    assert found.json()["items"] == as_rows(expected)


def test_organisations_together_serve_users_they_know_and_nobody_new(opened, short_runs):
    run = opened("mtal")
    client, names = client_of(run), run.state.recommender.data.user_names
    assert not run.state.recommender.alike
    library = coterie.load(short_runs["mtal"])
    for user in names[:2]:
        found = client.get(f"/recommend/{user}", params={"top": 5})
        assert found.status_code == 200
        assert found.json()["items"] == as_rows(library.recommend([user], top=5))
    refused = client.post("/new-user", json={"items": run.state.recommender.data.item_names[:2]})
    assert refused.status_code == 409
    assert "users that they knew when they met" in refused.json()["error"]


def test_a_run_without_items_is_refused(short_runs, capsys):
    run = str(short_runs["page"])
    capsys.readouterr()  # of training
    assert main(["serve", "--run", run, "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "there are no items to recommend" in said
    assert said.count("\n") == 1
