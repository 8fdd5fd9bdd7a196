"""What stands before the routes: token, sizes, rates, what happens at a time, what is logged."""

import asyncio
import logging
import threading

import httpx
import pytest
from starlette.testclient import TestClient

from coterie.core.errors import UserError
from coterie.core.serve.app import make_app
from coterie.core.serve.limits import (
    Limits,
    Rates,
    Token,
    bound_socket,
    check_address,
    is_loopback,
    read_token,
)

SECRET = "a-token-of-enough-characters"


def client_of(opened, token=None, base="http://127.0.0.1", **limits):
    app = make_app(opened, Limits(**limits), token)
    return TestClient(app, base_url=base, raise_server_exceptions=False)


@pytest.mark.parametrize("path", ["/recommend/1", "/metrics", "/docs", "/openapi.json", "/none"])
def test_without_the_token_there_is_nothing_but_health(opened, path):
    client = client_of(opened, Token(SECRET), base="http://served.example")
    assert client.get("/healthz").status_code == 200
    for given in (None, "Bearer wrong", f"Basic {SECRET}", f"Bearer {SECRET}x", SECRET, ""):
        found = client.get(path, headers={} if given is None else {"authorization": given})
        assert found.status_code == 401
        assert found.headers["www-authenticate"] == "Bearer"
    found = client.get(path, headers={"authorization": f"bearer {SECRET}"})
    assert found.status_code == (404 if path == "/none" else 200)


@pytest.mark.parametrize("given", [[], [(b"authorization", b"Bearer wrong")]])
def test_a_batch_without_the_token_is_refused_unread(opened, given):
    sent = []

    async def receive():
        raise AssertionError("somebody's history is read before it is known who sends it")

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/recommend", "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), *given],
    }  # fmt: skip
    asyncio.run(make_app(opened, Limits(), Token(SECRET))(scope, receive, send))
    assert sent[0]["status"] == 401


def test_without_a_token_the_server_answers_to_names_of_this_machine_only(opened):
    client = client_of(opened)
    for host in ("127.0.0.1:8000", "localhost", "[::1]:80", "[::1]"):
        assert client.get("/recommend/1", headers={"host": host}).status_code == 200
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        assert client.get("/recommend/1", headers={"host": host}).status_code == 400


def test_a_token_is_read_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("COTERIE_TOKEN", raising=False)
    assert read_token(None) is None
    (tmp_path / "token").write_text(f"{SECRET}\n")
    monkeypatch.setenv("COTERIE_TOKEN", SECRET * 2)
    for found, secret in ((read_token(tmp_path / "token"), SECRET), (read_token(None), SECRET * 2)):
        assert found.opens(f"Bearer {secret}".encode())
        assert not found.opens(f"Bearer {secret}1".encode())
    for text in ("", "short", "has blanks in it, and is long", "ä" * 20):
        (tmp_path / "token").write_text(text)
        with pytest.raises(UserError, match="token"):
            read_token(tmp_path / "token")
    with pytest.raises(UserError, match="cannot be read"):
        read_token(tmp_path / "none")
    with pytest.raises(UserError, match=r"cannot be read \(is a directory\)"):
        read_token(tmp_path)


def test_without_a_token_only_this_machine_is_served():
    check_address("0.0.0.0", Token(SECRET))
    for own in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        assert is_loopback(own)
        check_address(own, None)
    for other in ("0.0.0.0", "::", "192.0.2.1", "", "no.such.name.invalid"):
        with pytest.raises(UserError, match="without a token only this machine"):
            check_address(other, None)


def test_a_taken_port_is_one_line():
    first = bound_socket("127.0.0.1", 0)
    first.listen()
    with pytest.raises(UserError, match="address already in use"):
        bound_socket("127.0.0.1", first.getsockname()[1])
    first.close()


@pytest.mark.parametrize("told", [True, False])
def test_a_body_is_read_up_to_its_limit_only(opened, told):
    """Also one that comes in parts and does not say how long it is."""
    sent = []

    def parts():
        for _ in range(1000):
            sent.append(1)
            yield b" " * 100

    client = client_of(opened, body=1000)
    headers = {"content-type": "application/json"}
    content = b" " * 100_000 if told else parts()
    found = client.post("/recommend", content=content, headers=headers)
    assert found.status_code == 413


def test_no_more_is_read_than_the_limit(opened):
    """Asked part by part, as a server of HTTP does."""
    taken, sent = [], []

    async def receive():
        taken.append(1)
        return {"type": "http.request", "body": b" " * 100, "more_body": True}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/recommend", "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")],
    }  # fmt: skip
    asyncio.run(make_app(opened, Limits(body=1000))(scope, receive, send))
    assert sent[0]["status"] == 413
    assert len(taken) == 11


def test_rates_come_back_with_time_and_are_kept_of_few():
    now = [0.0]
    rates = Rates(Limits(rate=2.0, burst=3, addresses=4), clock=lambda: now[0])
    assert [rates.allow("a") for _ in range(5)] == [True, True, True, False, False]
    now[0] = 0.5
    assert [rates.allow("a") for _ in range(2)] == [True, False]
    now[0] = 100.0
    assert [rates.allow("a") for _ in range(4)] == [True, True, True, False]
    for number in range(1000):
        rates.allow(str(number))
    assert len(rates) == 4


def test_too_many_requests_are_told_to_come_again(opened):
    client = client_of(opened, rate=0.001, burst=3)
    found = [client.get("/recommend/1") for _ in range(5)]
    assert [each.status_code for each in found] == [200, 200, 200, 429, 429]
    assert found[-1].headers["retry-after"] == "1"
    assert client.get("/healthz").status_code == 200


def held(opened, app, count, paths=("/recommend/1",)):
    """Ask while the computing thread is busy; give the answers, and let it go."""
    free = threading.Event()
    busy = opened.submit(lambda state: free.wait(20))

    async def ask():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            asked = [asyncio.ensure_future(client.get(path)) for path in paths * count]
            done, _ = await asyncio.wait(asked, timeout=1.0)
            early = sorted(one.result().status_code for one in done)
            health = (await client.get("/healthz")).status_code
            free.set()
            return early, health, [each.status_code for each in await asyncio.gather(*asked)]

    found = asyncio.run(ask())
    busy.result()
    return found


def test_more_than_can_be_answered_at_a_time_are_refused_and_the_loop_is_free(opened):
    app = make_app(opened, Limits(in_flight=2))
    early, health, all_of_them = held(opened, app, 5)
    assert early == [503, 503, 503]
    assert health == 200
    assert sorted(all_of_them) == [200, 200, 503, 503, 503]
    assert app._in_flight == 0


def test_what_takes_too_long_is_given_up(opened):
    app = make_app(opened, Limits(timeout=0.2))
    early, _, _ = held(opened, app, 2)
    assert early == [503, 503]
    assert app._in_flight == 0


def test_the_log_has_routes_and_no_users(opened, caplog):
    client = client_of(opened)
    with caplog.at_level(logging.INFO, "coterie.serve"):
        client.get("/recommend/17?top=3")
        client.post("/new-user", json={"items": ["4", "zzz"]})
        client.get("/recommend/somebody-unknown")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rsplit(" ", 2)[0] for line in lines] == [
        "GET /recommend/{user} 200", "POST /new-user 200", "GET /recommend/{user} 404",
    ]  # fmt: skip


def test_a_mistake_of_the_server_is_one_line_without_data(opened, caplog, monkeypatch):
    def broken(*_):
        raise ValueError("somebody's history")

    monkeypatch.setattr("coterie.core.serve.together.listed", broken)
    found = client_of(opened).get("/recommend/1")
    assert found.status_code == 500
    assert found.json() == {"error": "the server has made a mistake"}
    assert "history" not in caplog.text
    assert "internal error: ValueError at test_guard.py" in caplog.text
    assert "Traceback" not in caplog.text
