"""Requests for one user each that wait at the same time: listed together, answered as alone."""

import asyncio
import threading

import httpx
import pytest
import torch

from coterie.core.serve import together as module
from coterie.core.serve.app import make_app
from coterie.core.serve.guard import Refused
from coterie.core.serve.limits import Limits
from coterie.core.serve.lists import listed
from coterie.core.serve.together import Together

ASKED = [("1", 7), ("2", 7), ("nobody", 7), ("3", 3), ("1", 7), ("7", 7), ("2", 3), ("9", 50)]


@pytest.fixture
def turns(monkeypatch):
    """Users of every batch that is listed."""
    found = []

    def noted(state, users, top):
        found.append((list(users), top))
        return listed(state, users, top)

    monkeypatch.setattr(module, "listed", noted)
    return found


def asked_at_once(opened, asked, cancelled=()):
    """Futures of users who ask while the computing thread is busy; some of them give up."""
    free, waiting = threading.Event(), Together(opened)
    busy = opened.submit(lambda state: free.wait(20))
    found = [waiting.ask(user, top) for user, top in asked]
    for place in cancelled:
        assert found[place].cancel()
    free.set()
    assert busy.result()
    opened.submit(lambda state: None).result(20)  # all turns have been
    return found


def alone(opened, user, top):
    [found] = listed(opened.state, [user], top)
    return (found.status, found.why) if isinstance(found, Refused) else found


def answer_of(future):
    error = future.exception(timeout=0)
    return (error.status, error.why) if isinstance(error, Refused) else future.result()


def test_who_waits_is_listed_together_and_answered_as_alone(opened, turns):
    found = asked_at_once(opened, ASKED)
    assert turns == [(["1", "2", "nobody", "7"], 7), (["3", "2"], 3), (["9"], 50)]
    for (user, top), future in zip(ASKED, found, strict=True):
        assert answer_of(future) == alone(opened, user, top)
    assert answer_of(found[2])[0] == 404


def test_everybodys_answer_is_that_of_a_request_alone_to_the_bit(opened, turns):
    users = opened.state.recommender.data.user_names
    found = asked_at_once(opened, [(user, 1000) for user in users])
    assert len(turns) == 1
    for user, future in zip(users, found, strict=True):
        assert answer_of(future) == alone(opened, user, 1000)


def test_where_numbers_depend_on_others_each_is_listed_alone(opened, turns, monkeypatch):
    monkeypatch.setitem(opened.state.recommender.__dict__, "alike", False)
    found = asked_at_once(opened, ASKED)
    assert turns == [([user], top) for user, top in ASKED]
    assert [answer_of(each) for each in found] == [alone(opened, *each) for each in ASKED]


def test_who_gave_up_costs_nothing_and_the_others_are_answered(opened, turns):
    found = asked_at_once(opened, ASKED[:4], cancelled=(0, 3))
    assert turns == [(["2", "nobody"], 7)]
    assert found[0].cancelled()
    assert answer_of(found[1]) == alone(opened, "2", 7)
    turns.clear()
    assert all(each.cancelled() for each in asked_at_once(opened, ASKED[:2], cancelled=(0, 1)))
    assert turns == []


def test_what_goes_wrong_for_one_is_theirs_alone(opened, caplog):
    """A user whose numbers are not finite fails alone, as in a request alone."""
    recommender = opened.state.recommender
    broken = recommender.number("2")
    rows = recommender.module.store._rows.best["user"]
    before = rows.clone()
    free = threading.Event()
    app = make_app(opened, Limits(rate=1e9, burst=10**9))

    async def ask(paths):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            asked = [asyncio.ensure_future(client.get(path)) for path in paths]
            await asyncio.wait(asked, timeout=0.3)
            free.set()
            return await asyncio.gather(*asked)

    expected = {user: alone(opened, user, 10) for user in ("1", "3")}
    try:
        rows[recommender.module.store._place[broken]] = torch.nan
        busy = opened.submit(lambda state: free.wait(20))
        users = ("1", "2", "nobody", "3")
        found = asyncio.run(ask([f"/recommend/{user}" for user in users]))
        assert busy.result()
        assert [each.status_code for each in found] == [200, 500, 404, 200]
        assert found[0].json() == expected["1"]
        assert found[3].json() == expected["3"]
    finally:
        rows.copy_(before)
    assert "internal error: ValueError" in caplog.text
