"""Shakespeare by role: plays, LEAF's JSON, characters, and files that are neither."""

import json
import re
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.page.official_layouts import decode, garble, leaf_user, pack, truncate, write_leaf

from coterie.core.errors import UserError
from coterie.page.data.shakespeare import SYMBOLS, counts, encode, read_roles, speeches, windows

LONG = "The quality of mercy is not strain'd, it droppeth as the gentle rain from heaven. " * 2
PLAY = f"""\tA PLAY

DRAMATIS PERSONAE

HAL\tson to the king.
NED\this friend.

ACT I

SCENE I\tA street.

\t[Enter HAL, and
\tNED]

HAL\tNow, Ned,
\twhat time is it?

NED\t[Aside]  Late.

\t[A bell rings]

\tVery late.

DUCHESS
OF YORK\t{LONG}

SCENE II\tThe same.

HAL\tGo.

\t[Exeunt]
"""


def test_speeches_of_a_play():
    found = speeches(PLAY)
    assert list(found) == ["HAL", "NED", "DUCHESS OF YORK"]
    assert found["HAL"].split() == ["Now,", "Ned,", "what", "time", "is", "it?", "Go."]
    assert found["NED"].split() == ["Late.", "Very", "late."]


def test_a_text_without_heading_is_all_speech():
    assert speeches("HAL\tNow.\nNED\tNever.") == {"HAL": "Now.", "NED": "Never."}
    assert speeches("\tSONNETS\n\nI.\n\nFrom fairest creatures\n") == {}
    assert speeches("") == {}


def test_symbols_are_leafs():
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 80
    assert decode(encode("Hal's 3 [x]!\n")) == "Hal's 3 [x]!\n"
    assert decode(encode("a|é\t€😀\ud800")) == "a      "


@given(st.text(alphabet="ab  \n\t.é", max_size=200))
def test_windows_are_all_runs_of_80_and_the_next_character(text):
    clean = decode(encode(re.sub(r"\s+", " ", text).strip()))
    x, y = windows(text)
    assert [decode(row) for row in x] == [clean[k : k + 80] for k in range(len(clean) - 80)]
    assert decode(y) == clean[80:]


@pytest.fixture
def plays(tmp_path):
    folder = tmp_path / "made" / "shakespeare"
    folder.mkdir(parents=True)
    (folder / "one.txt").write_text(PLAY)
    (folder / "two.txt").write_text(f"HAL\t{LONG}more\nNED\tShort.")
    return folder


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_a_role_of_a_play_is_a_client(plays, tmp_path, form):
    root = plays.parent
    if form == "archive":
        root = tmp_path / "root"
        pack(plays, root / "plays.tar.gz")
    roles = read_roles(root, 1)
    assert [role.name for role in roles] == ["one: DUCHESS OF YORK", "two: HAL"]
    text = LONG.strip()
    assert [len(role) for role in roles] == [len(text) - 80, len(text) + 5 - 80]
    assert decode(roles[0].x[3]) + decode(roles[0].y[3:4]) == text[3:84]
    assert read_roles(root, len(roles[1]))[0].name == "two: HAL"
    assert counts(root)[-1] == {
        "part": "roles with 1 samples or more",
        "roles": 2,
        "samples": 2 * len(text) - 155,
    }
    assert all(path.name == "plays.tar.gz" for path in (tmp_path / "root").rglob("*"))


def test_samples_cost_no_memory_before_they_are_taken(plays):
    role = read_roles(plays.parent, 1)[0]
    assert role.x.untyped_storage().nbytes() == len(role) + 80


def test_too_few_samples(plays):
    with pytest.raises(UserError, match=r"no role has 8000 samples \(the largest has 88\)"):
        read_roles(plays.parent)
    (plays / "one.txt").write_text("")
    (plays / "two.txt").write_text("NED\t\n")
    with pytest.raises(UserError, match="the largest has 0"):
        read_roles(plays.parent, 0)


@pytest.mark.parametrize(
    "place", ["all_data_0.json", "data/all_data/all_data.json", "data/train/a.json", "train/a.json"]
)
def test_leafs_files(tmp_path, place):
    text = LONG[:90]
    write_leaf(tmp_path / place, {"PLAY_HAL": leaf_user(text, 5), "PLAY_NED": leaf_user(text, 2)})
    roles = read_roles(tmp_path, 1)
    assert [(role.name, len(role)) for role in roles] == [("PLAY_HAL", 5), ("PLAY_NED", 2)]
    assert decode(roles[0].x[4]) + decode(roles[0].y[4:]) == text[4:85]
    assert roles[0].x.dtype == torch.uint8
    assert [role.name for role in read_roles(tmp_path, 3)] == ["PLAY_HAL"]


def test_leafs_own_cut_is_joined(tmp_path):
    user = leaf_user(LONG, 6)
    first, last = ({name: v[part] for name, v in user.items()} for part in (slice(4), slice(4, 6)))
    write_leaf(tmp_path / "data" / "train" / "cut.json", {"HAL": first})
    write_leaf(tmp_path / "data" / "test" / "cut.json", {"HAL": last})
    (role,) = read_roles(tmp_path, 1)
    assert [decode(row) for row in role.x] == user["x"]


def test_leafs_windows_equal_ours(plays, tmp_path):
    text = " ".join(LONG.split())
    write_leaf(tmp_path / "leaf" / "train" / "a.json", {"D": leaf_user(text, len(text) - 80)})
    (theirs,), (ours, _) = read_roles(tmp_path / "leaf", 1), read_roles(plays.parent, 1)
    assert torch.equal(theirs.x, ours.x)
    assert torch.equal(theirs.y, ours.y)


GOOD = {"users": ["a"], "num_samples": [1], "user_data": {"a": leaf_user(LONG, 1)}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        (b"\xff\xfe\xff", "is no JSON"),
        ("[]", "has no list 'users'"),
        (GOOD | {"users": {"a": 1}}, "has no list 'users'"),
        ({k: GOOD[k] for k in ("users", "num_samples")}, "has no dict 'user_data'"),
        (GOOD | {"num_samples": []}, "differ in length"),
        (GOOD | {"users": [["a"]]}, "not all named by strings"),
        (GOOD | {"num_samples": [2]}, "num_samples says 2"),
        (GOOD | {"user_data": {}}, "'a' has no lists x and y"),
        (GOOD | {"user_data": {"a": {"x": ["b" * 80]}}}, "'a' has no lists x and y"),
        (GOOD | {"user_data": {"a": {"x": ["b" * 79], "y": ["c"]}}}, "not 80 characters"),
        (GOOD | {"user_data": {"a": {"x": ["b" * 80], "y": [""]}}}, "not 80 characters"),
        (GOOD | {"user_data": {"a": {"x": [[1] * 80], "y": ["c"]}}}, "not 80 characters"),
        (GOOD | {"user_data": {"a": {"x": ["b" * 80], "y": [3]}}}, "not 80 characters"),
        (GOOD | {"user_data": {"a": {"x": [], "y": []}}, "num_samples": [0]}, "no role has 1"),
    ],
)
def test_other_json_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "all_data.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError, match=message) as caught:
        read_roles(tmp_path, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spoil", [truncate, garble])
def test_damaged_archives(plays, tmp_path, spoil):
    pack(plays, tmp_path / "root" / "plays.tar.gz")
    spoil(tmp_path / "root" / "plays.tar.gz")
    with pytest.raises(UserError, match="damaged"):
        read_roles(tmp_path / "root", 1)


def test_nothing_there(tmp_path):
    with pytest.raises(UserError, match=r"there is no Shakespeare in .*put all_data.*SPEAKER"):
        read_roles(tmp_path)


@pytest.mark.real_data
def test_the_plays_have_enough_large_roles(data_root):
    if not (data_root / "shakespeare").is_dir():
        pytest.skip(f"needs shakespeare in {data_root}")
    roles = read_roles(data_root / "shakespeare")
    by_name = {role.name: role for role in roles}
    assert len(roles) >= 100
    assert "hamlet: HAMLET" in by_name
    assert len(by_name["hamlet: HAMLET"]) > 55_000  # about 1500 lines of 40 characters
    # English text: the space is the most frequent symbol, then e and t.
    common = Counter(by_name["hamlet: HAMLET"].y.tolist()).most_common(3)
    assert [SYMBOLS[code] for code, _ in common] == [" ", "e", "t"]
