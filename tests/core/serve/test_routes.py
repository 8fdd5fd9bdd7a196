"""The routes of a server: what is answered, beside what the library recommends."""

import json
import warnings

import pytest
from starlette.testclient import TestClient

import coterie
from coterie.core.serve.app import make_app
from coterie.core.serve.limits import Limits
from coterie.core.serve.messages import Listed, ListedUser, Lists

LIMITS = Limits(rate=1e9, burst=10**9, users=5, history=6, top=50, body=2000)


@pytest.fixture(scope="module")
def client(opened):
    return TestClient(make_app(opened, LIMITS), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def run(folder):
    return coterie.load(folder)


def as_rows(frame):
    return frame[["rank", "item", "title", "score"]].to_dict("records")


def test_a_user_is_answered_what_the_library_recommends(client, run):
    for user in ("1", "7", "20"):
        found = client.get(f"/recommend/{user}", params={"top": 7})
        assert found.status_code == 200
        body = found.json()
        assert body["items"] == as_rows(run.recommend([user], top=7))
        assert (body["user"], body["notes"]) == (user, [])
        assert body["round"] == opened_round(client)


def opened_round(client):
    return client.get("/healthz").json()["round"]


def test_answers_have_the_fields_that_the_docs_say(client):
    """They are not checked on the way: they are made as they are described."""
    batch = client.post("/recommend", json={"users": ["3", "nobody"], "top": 4}).json()
    given = {
        Lists: batch,
        ListedUser: client.get("/recommend/1").json(),
        Listed: client.post("/new-user", json={"items": ["4", "9"]}).json(),
    }
    for model, answer in given.items():
        assert model.model_validate(answer, strict=True).model_dump() == answer


def test_many_users_are_answered_as_each_alone(client):
    users = ["3", "1", "nobody", "2", "3"]
    found = client.post("/recommend", json={"users": users, "top": 4}).json()["lists"]
    assert [each["user"] for each in found] == ["3", "1", "nobody", "2"]
    for each in found:
        alone = client.get(f"/recommend/{each['user']}?top=4")
        if each["user"] == "nobody":
            assert alone.status_code == 404
            assert each["items"] == []
            assert each["notes"] == [alone.json()["error"]]
        else:
            assert each == alone.json()


@pytest.mark.parametrize("ratings", [None, [5.0, 4.0, 1.0]])
def test_someone_new_is_answered_what_the_library_recommends(client, run, ratings):
    import pandas as pd

    items = ["4", "9", "nothing"]
    asked = {"items": items, "top": 5} | ({"ratings": ratings} if ratings else {})
    frame = pd.DataFrame({"item": items} | ({"rating": ratings} if ratings else {}))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        expected = as_rows(run.recommend_new(frame, top=5))
    found = client.post("/new-user", json=asked).json()
    assert found["items"] == expected
    assert found["notes"] == [str(each.message) for each in said]
    assert any("1 of 3 items unknown: nothing" in note for note in found["notes"])


def test_someone_new_is_named_by_titles_too(client, run):
    titles = run.recommend(["1"], top=2).title.tolist()
    found = client.post("/new-user", json={"titles": titles})
    assert found.status_code == 200
    assert not {item["title"] for item in found.json()["items"]} & set(titles)


def test_nothing_of_someone_new_is_kept(client):
    first = client.post("/new-user", json={"items": ["4", "9"]}).json()
    client.post("/new-user", json={"items": ["5"]})
    assert client.post("/new-user", json={"items": ["4", "9"]}).json() == first


def test_who_took_no_part_is_told_why(opened):
    """The last user is taken out of the store, as if it had never been there."""
    module, last = opened.state.recommender.module, 0
    place = module.store._place.clone()
    try:
        module.store._place[last] = -1
        client = TestClient(make_app(opened, LIMITS), base_url="http://127.0.0.1")
        name = opened.state.recommender.data.user_names[last]
        found = client.get(f"/recommend/{name}")
        assert found.status_code == 409
        assert "has not taken part in any round yet" in found.json()["error"]
        listed = client.post("/recommend", json={"users": [name, "2"]}).json()["lists"]
        assert listed[0]["notes"] == [found.json()["error"]]
        assert len(listed[1]["items"]) == 10
    finally:
        module.store._place.copy_(place)


@pytest.mark.parametrize(
    ("method", "path", "given", "status", "said"),
    [
        ("GET", "/recommend/nobody", {}, 404, "no such user"),
        ("GET", "/recommend/", {}, 404, "no such user"),
        ("GET", "/elsewhere", {}, 404, "Not Found"),
        ("DELETE", "/recommend/1", {}, 405, "Method Not Allowed"),
        ("GET", "/recommend/1?top=0", {}, 422, "query.top"),
        ("GET", "/recommend/1?top=51", {}, 422, "top is at most 50"),
        ("GET", "/recommend/1?top=x", {}, 422, "query.top"),
        ("POST", "/recommend", {"content": b"{", "type": "application/json"}, 400, "no JSON"),
        ("POST", "/recommend", {"content": b"\xff\xfe{", "type": "application/json"}, 400, "body"),
        ("POST", "/recommend", {"content": b"[" * 1999, "type": "application/json"}, 400, "body"),
        ("POST", "/recommend", {"content": b"{}", "type": "text/plain"}, 415, "JSON"),
        ("POST", "/recommend", {"content": b"{}", "type": ""}, 415, "JSON"),
        ("POST", "/recommend", {"json": {"users": []}}, 422, "body.users"),
        ("POST", "/recommend", {"json": {"users": ["1"] * 6}}, 422, "users is at most 5"),
        ("POST", "/recommend", {"json": {"users": "1"}}, 422, "body.users"),
        ("POST", "/recommend", {"json": {"users": [1]}}, 422, "body.users.0"),
        ("POST", "/recommend", {"json": {"users": ["1"], "other": 1}}, 422, "body.other"),
        ("POST", "/recommend", {"json": {"users": ["1" * 1990]}}, 413, "2,000 bytes"),
        ("POST", "/new-user", {"json": {}}, 422, "either items or titles"),
        ("POST", "/new-user", {"json": {"items": []}}, 422, "empty"),
        ("POST", "/new-user", {"json": {"items": ["1"] * 7}}, 422, "history is at most 6"),
        ("POST", "/new-user", {"json": {"items": ["zz"]}}, 422, "none of its items is known"),
        ("POST", "/new-user", {"json": {"items": ["1"], "ratings": [1, 2]}}, 422, "as many"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_in_one_line(client, method, path, given, status, said):
    kind = given.pop("type", None)
    headers = {"content-type": kind} if kind else {}
    found = client.request(method, path, headers=headers, **given)
    assert found.status_code == status, found.text
    error = found.json()["error"]
    assert said in error
    assert "\n" not in error
    assert "Traceback" not in found.text
    given |= {"type": kind} if kind is not None else {}


def test_a_refused_value_is_not_repeated(client):
    found = client.post("/recommend", json={"users": ["1"], "top": "SECRET-OF-SOMEBODY"})
    assert found.status_code == 422
    assert "SECRET" not in found.text


def test_counts_name_routes_and_no_users(client):
    client.get("/recommend/17")
    client.get("/some/where")
    text = client.get("/metrics").text
    assert 'coterie_requests_total{method="GET",route="/recommend/{user}",status="200"}' in text
    assert 'route="other",status="404"' in text
    assert f"coterie_run_round {opened_round(client)}" in text
    assert 'coterie_reloads_total{result="failed"} 0.0' in text
    assert "coterie_request_seconds_bucket" in text
    assert "/recommend/17" not in text
    assert "somewhere" not in text


def test_the_docs_load_nothing_and_name_every_route(client):
    found = client.get("/docs")
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert "<script" not in found.text
    assert "http://" not in found.text
    assert "https://" not in found.text
    described = client.get("/openapi.json").json()
    for path, methods in described["paths"].items():
        for method, said in methods.items():
            assert f"{method.upper()} {path}" in found.text
            assert said["description"]
    for name, part in described["components"]["schemas"].items():
        if name not in ("HTTPValidationError", "ValidationError"):
            for field, about in part["properties"].items():
                assert about.get("description") or about.get("examples") or field == "lists"


def test_the_examples_of_the_docs_are_answered(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    batch = {"users": schemas["Batch"]["properties"]["users"]["examples"][0]}
    assert client.post("/recommend", json=batch).status_code == 200
    assert json.dumps(batch)
