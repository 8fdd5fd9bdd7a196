"""Sets known by their titles: the layouts they come in, whole, broken and real."""

import gzip
import json

import pytest
import torch

from coterie.core.data.interactions.interactions import k_core
from coterie.core.data.sources.catalogue import load
from coterie.core.data.sources.review_readers import read_amazon_titles, read_microlens
from coterie.core.errors import UserError

HEADER = "user_id,item_id,position,split,title\n"
ROWS = [
    'A1,7,0,train,"Glue, 2 g"',
    "A1,8,2,valid,Tape",
    "A1,7,5,test,ignored later title",
    "A2,9,0,train,Tape",
    "A2,8,1,train,Tape",
]
INTERACTIONS = "Industrial_and_Scientific.interactions.csv"
ITEMS = "Industrial_and_Scientific.item.json"


@pytest.fixture
def amazon(tmp_path):
    def write(rows, items=None, zipped=False):
        files = {INTERACTIONS: HEADER + "\n".join(rows) + "\n"}
        if items is not None:
            files[ITEMS] = items if isinstance(items, str) else json.dumps(items, indent=1)
        for name, text in files.items():
            if zipped:
                (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
            else:
                (tmp_path / name).write_text(text)
        return read_amazon_titles(tmp_path)

    return write


@pytest.mark.parametrize("zipped", [False, True])
def test_amazon_titles(amazon, zipped):
    data = amazon(ROWS, {"7": {"brand": "UHU"}, "8": {"brand": None}, "99": {}}, zipped)
    assert data.user_names == ["A1", "A2"]
    assert data.item_names == ["7", "8", "9"]
    assert data.titles == ["Glue, 2 g", "Tape", "Tape"]
    assert data.brands == ["UHU", "", ""]
    assert data.split.tolist() == [0, 1, 2, 0, 0]
    assert data.time.tolist() == [0, 2, 5, 0, 1]
    assert data.rating is None


def test_brands_are_optional_and_follow_the_filters(amazon):
    assert amazon(ROWS).brands is None
    data = amazon(ROWS, {"7": {"brand": "UHU"}, "8": {"brand": "Tesa"}})
    kept = k_core(data, 2)
    assert (kept.item_names, kept.brands) == (["7"], ["UHU"])
    assert kept.split.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("A2,7,2,dev,T", "line 7: column 'split' is 'dev', not train, valid or test"),
        ("A2,7,1,train,T", "line 7: the user has this position twice"),
        ("A1,9,3,train,T", "line 7: the part is before that of the user's position before it"),
        ("A1,9,x,train,T", "line 7: column 'position' is 'x', not a whole number"),
        ("A1,9,6,test", "line 7: expected 5 columns, found 4"),
    ],
)
def test_amazon_titles_malformed(amazon, row, message):
    with pytest.raises(UserError) as caught:
        amazon([*ROWS, row])
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ('{"7": {\n"brand" "UHU"}}', "line 2: Expecting ':' delimiter"),
        ("[1]", "is no JSON object of items by id"),
        ('{"7": 3}', "is no JSON object of items by id"),
        ("[" * 100_000, "too deep"),
    ],
)
def test_brands_malformed(amazon, items, message):
    with pytest.raises(UserError, match=message):
        amazon(ROWS, items)


def test_microlens(tmp_path):
    pairs = "user,item,timestamp\n36,4,1668504763932\n36,5,1583378629552\n7,4,1583378629553\n"
    (tmp_path / "MicroLens-50k_pairs.csv").write_text(pairs)
    assert read_microlens(tmp_path).titles is None
    titles = 'item,title\n4,"one, ""two"""\n5,three\n6,unseen\n'
    (tmp_path / "MicroLens-50k_titles.csv.gz").write_bytes(gzip.compress(titles.encode()))
    data = read_microlens(tmp_path)
    assert data.user_names == ["36", "7"]
    assert data.titles == ['one, "two"', "three"]
    assert data.time.tolist() == [1668504763932, 1583378629552, 1583378629553]


@pytest.mark.parametrize(
    ("name", "file"), [("microlens", "MicroLens-50k_pairs.csv"), ("amazon-titles", INTERACTIONS)]
)
def test_sets_without_an_archive_say_what_to_put_where(tmp_path, name, file):
    with pytest.raises(UserError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert f"cannot be downloaded: put {file} (or .gz) into {tmp_path / name}" in message
    assert len(message.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real_data
def test_amazon_titles_real(data_root):
    if not (data_root / "amazon-titles").is_dir():
        pytest.skip("needs amazon-titles in the folder of the public data sets")
    data = load("amazon-titles", data_root)
    assert (len(data), data.n_users, data.n_items) == (22_743, 3_285, 3_541)
    assert torch.bincount(data.split).tolist() == [13_678, 4_532, 4_533]
    assert all(data.titles)
    assert data.brands[data.item_names.index("0")] == "Sealed Unit Parts Co., Inc."
