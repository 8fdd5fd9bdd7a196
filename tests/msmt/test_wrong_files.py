"""Files of AliExpress and Tenrec that are not what they should be, and what a user is told."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.msmt import published_files
from coterie.core.data.sources import csv_blocks
from coterie.core.data.sources.first_look import check_different
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data import aliexpress, tenrec
from coterie.msmt.data.aliexpress import read_aliexpress
from coterie.msmt.data.tenrec import read_tenrec
from coterie.msmt.settings import ScenarioData

Change = Callable[[Path], object]
PAGE = b"<!DOCTYPE html>\n<html><body>please, log in</body></html>\n"
NL = "AliExpress_NL"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files in the published forms, a folder of each: joined, official, zipped, tenrec."""
    folder = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(published_files, "_PAGES", 40)
        for form in ("joined", "official", "zipped"):
            published_files.write_aliexpress(folder / form / NL, "NL", form, 1e-5)
        patched.setattr(published_files, "_BLOCK", 500)
        published_files.write_tenrec(folder / "tenrec", 5e-6)
    return folder


def read(form: str, folder: Path, streamed: bool = False) -> tuple[str, ...]:
    """Read a folder; gives the notes."""
    if form == "tenrec":
        settings = ScenarioData(name="tenrec")
        return read_tenrec(folder, settings, Key.from_seed(0), streamed=streamed).notes
    settings = ScenarioData(name="aliexpress")
    return read_aliexpress(folder, settings, Key.from_seed(0), streamed=streamed).notes


def copied(published: Path, form: str, folder: Path) -> Path:
    """Copy files of a form; gives the folder that holds them."""
    shutil.copytree(published / form, folder)
    return folder if form == "tenrec" else folder / NL


def text(change: Callable[[bytes], bytes], name: str) -> Change:
    def spoil(folder: Path) -> None:
        before = (folder / name).read_bytes()
        after = change(before)
        assert after != before
        (folder / name).write_bytes(after)

    return spoil


def swapped(one: str, two: str) -> Change:
    def spoil(folder: Path) -> None:
        (folder / one).rename(folder / "third")
        (folder / two).rename(folder / one)
        (folder / "third").rename(folder / two)

    return spoil


def cell(name: str, row: int, column: int, value: bytes) -> Change:
    def change(content: bytes) -> bytes:
        lines = content.split(b"\n")
        fields = lines[row].split(b",")
        fields[column] = value
        lines[row] = b",".join(fields)
        return b"\n".join(lines)

    return text(change, name)


def gzipped(name: str, share: float) -> Change:
    def spoil(folder: Path) -> None:
        content = gzip.compress((folder / name).read_bytes())
        (folder / name).unlink()
        (folder / f"{name}.gz").write_bytes(content[: int(share * len(content))])

    return spoil


def without_header(content: bytes) -> bytes:
    return content.split(b"\n", 1)[1]


def narrowed(content: bytes) -> bytes:
    return b"".join(b",".join(line.split(b",")[:40]) + b"\n" for line in content.split(b"\n")[:-1])


FAULTS: dict[str, tuple[str, Change, str, str]] = {
    "pages for products": (
        "official",
        swapped("nl_user_train.csv", "nl_item_train.csv"),
        "nl_user_train.csv, line 1: ",
        "expected 33 columns, found 49: this is a file of products under the name",
    ),
    "products for pages, test": (
        "zipped",
        lambda folder: shutil.copy(folder / "nl_user_train.zip", folder / "nl_item_test.zip"),
        "nl_item_test.zip is a copy of ",
        "nl_user_train.zip: fetch",
    ),
    "pages of the other part": (
        "official",
        swapped("nl_user_train.csv", "nl_user_test.csv"),
        "none of the first ",
        "nl_user_train.csv: fetch both again, of one country and part",
    ),
    "test is train": (
        "joined",
        lambda folder: shutil.copy(folder / "train.csv", folder / "test.csv"),
        "test.csv is a copy of ",
        "train.csv: fetch the one that is wrong again",
    ),
    "another country": (
        "official",
        lambda folder: [
            path.rename(folder / path.name.replace("nl_", "es_")) for path in list(folder.iterdir())
        ],
        "es_user_train.csv is not of NL, as its folder is",
        "into a folder of its own",
    ),
    "cut off": (
        "joined",
        text(lambda t: t[:-7], "test.csv"),
        "test.csv, last line: ",
        "no line end, it is cut off",
    ),
    "a last line cut off, with a line end": (
        "joined",
        text(lambda t: t[:-70] + b"\n", "test.csv"),
        "test.csv, line ",
        "expected 82 columns, found ",
    ),
    "gzip cut off": (
        "joined",
        gzipped("train.csv", 0.7),
        "train.csv.gz, line 1: ",
        "gzip data are corrupt or cut off",
    ),
    "zip cut off": (
        "zipped",
        text(lambda t: t[: len(t) // 2], "nl_item_test.zip"),
        "nl_item_test.zip is no whole zip archive",
        "fetch the file again",
    ),
    "semicolons": (
        "joined",
        text(lambda t: t.replace(b",", b";"), "test.csv"),
        "test.csv, line 1: ",
        "separated by semicolons, not by commas",
    ),
    "tabs, no header": (
        "official",
        text(lambda t: t.replace(b",", b"\t"), "nl_item_test.csv"),
        "nl_item_test.csv, line 1: ",
        "separated by tabs, not by commas",
    ),
    "a web page": (
        "joined",
        text(lambda t: PAGE, "test.csv"),
        "test.csv, line 1: ",
        "this is a web page, not a table",
    ),
    "a web page as zip": (
        "zipped",
        text(lambda t: PAGE, "nl_user_test.zip"),
        "nl_user_test.zip, line 1: ",
        "this is a web page",
    ),
    "no header": (
        "joined",
        text(without_header, "train.csv"),
        "train.csv, line 1: ",
        "there is no header, this is a row of numbers",
    ),
    "columns missing": (
        "joined",
        text(narrowed, "test.csv"),
        "test.csv, line 1: ",
        "no column 'numerical_24', nor 41 others that are read: there are 40 others",
    ),
    "16 bits a character": (
        "joined",
        text(lambda t: t.decode().encode("utf-16"), "train.csv"),
        "train.csv, line 1: ",
        "this is UTF-16, not UTF-8 text",
    ),
    "binary data": (
        "joined",
        text(lambda t: b"PAR1" + bytes(range(256)) * 9, "train.csv"),
        "train.csv, line 1: ",
        "these are binary data",
    ),
    "lines of the old Macintosh": (
        "joined",
        text(lambda t: t.replace(b"\n", b"\r"), "train.csv"),
        "train.csv, line 1: ",
        "carriage returns alone",
    ),
    "a negative search id": (
        "joined",
        cell("train.csv", 20, 0, b"-5"),
        "train.csv, line 21: ",
        "the search id -5 is negative",
    ),
    "a negative search id of a page": (
        "official",
        cell("nl_user_test.csv", 5, 0, b"-5"),
        "nl_user_test.csv, line 6: ",
        "the search id -5 is negative",
    ),
    "a search id beyond 64 bits": (
        "joined",
        cell("train.csv", 20, 0, b"9" * 30),
        "train.csv, line 21: ",
        "more than 64 bits hold",
    ),
    "QK as QB": (
        "tenrec",
        lambda folder: (folder / "QB-video.csv").write_bytes(
            (folder / "ctr_data_1M.csv").read_bytes() + b"1,1,0,0,0,0,1,0,1,1" + b",1" * 10 + b"\n"
        ),
        "QB-video.csv, line 1: ",
        "there is a column 'hist_1': this is ctr_data_1M.csv under the name",
    ),
    "QB as QK": (
        "tenrec",
        swapped("QB-video.csv", "ctr_data_1M.csv"),
        "ctr_data_1M.csv, line 1: ",
        "no column 'hist_1'",
    ),
    "Tenrec cut off": (
        "tenrec",
        text(lambda t: t[:-3], "QB-video.csv"),
        "QB-video.csv, last line: ",
        "it is cut off",
    ),
    "a category beyond 64 bits": (
        "tenrec",
        cell("QB-video.csv", 4, 8, b"1e30"),
        "QB-video.csv, line 5: ",
        "'gender' is 1e+30, not an id",
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("streamed", [False, True])
def test_wrong_files_are_named_in_one_line(
    tmp_path: Path, published: Path, fault: str, streamed: bool
) -> None:
    form, spoil, start, what = FAULTS[fault]
    folder = copied(published, form, tmp_path / "data")
    spoil(folder)
    with pytest.raises(UserError) as caught:
        read(form, tmp_path / "data", streamed)
    message = str(caught.value)
    assert message.removeprefix(f"{folder}/").startswith(start), message
    assert what in message
    assert "\n" not in message
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("form", "name"),
    [("joined", "test.csv"), ("official", "nl_item_test.csv"), ("tenrec", "QB-video.csv")],
)
def test_the_last_file_is_looked_at_before_the_first_is_read(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch, form: str, name: str
) -> None:
    folder = copied(published, form, tmp_path / "data")
    (folder / name).write_bytes(PAGE)

    def no_reading(*_: object, **__: object) -> None:
        raise AssertionError("a file is read")

    for module in (aliexpress, tenrec):
        monkeypatch.setattr(module, "load", no_reading)
    monkeypatch.setattr(tenrec, "survey", no_reading)
    monkeypatch.setattr("coterie.msmt.data.aliexpress_pages.load", no_reading)
    with pytest.raises(UserError, match="web page"):
        read(form, tmp_path / "data", streamed=True)


def test_what_is_converted_is_not_looked_at(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(published, "joined", tmp_path / "data")
    read("joined", tmp_path / "data", streamed=True)
    monkeypatch.setattr(aliexpress, "look", None)
    read("joined", tmp_path / "data", streamed=True)


def test_the_last_line_is_looked_at_behind_the_first_block(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(published, "joined", tmp_path / "data")
    monkeypatch.setattr(csv_blocks, "_BLOCK", 4000)
    monkeypatch.setattr(aliexpress, "load", None)  # nothing is read
    text(lambda t: t[:-70] + b"\n", "test.csv")(folder)
    with pytest.raises(UserError, match=r"test\.csv, last line: expected 82 columns, found \d\d;"):
        read("joined", tmp_path / "data")


def test_files_of_one_size_and_other_content_are_no_copies(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path, content in zip(paths, (b"12345", b"12346", b"1234"), strict=True):
        path.write_bytes(content)
    check_different(paths)
    paths[2].write_bytes(b"12346")
    with pytest.raises(UserError, match=r"c is a copy of .*b: "):
        check_different(paths)


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("joined", text(lambda t: t.replace(b"\n", b"\r\n"), "train.csv")),
        ("official", text(lambda t: t.replace(b"\n", b"\r\n"), "nl_item_train.csv")),
        ("joined", text(lambda t: b"\xef\xbb\xbf" + t, "test.csv")),
        ("official", text(lambda t: b"\xef\xbb\xbf" + t, "nl_user_test.csv")),
        ("tenrec", text(lambda t: t.replace(b"\n", b"\r\n"), "QB-video.csv")),
    ],
)
def test_other_line_ends_and_a_mark_of_bytes_are_read(
    tmp_path: Path, published: Path, form: str, change: Change
) -> None:
    change(copied(published, form, tmp_path / "data"))
    assert read(form, tmp_path / "data") == read(form, published / form)


def test_a_test_file_with_more_samples_is_asked_about(tmp_path: Path, published: Path) -> None:
    folder = copied(published, "joined", tmp_path / "data")
    assert not any("swapped" in note for note in read("joined", tmp_path / "data"))
    swapped("train.csv", "test.csv")(folder)
    notes = read("joined", tmp_path / "data")
    assert any(note.startswith("NL: the test file has more samples") for note in notes)


def test_all_forms_have_the_same_rows(published: Path) -> None:
    counts = {
        form: [
            int(part.lengths.sum())
            for clients in [
                read_aliexpress(
                    published / form, ScenarioData(name="aliexpress"), Key.from_seed(0)
                ).clients
            ]
            for part in (clients.train, clients.valid, clients.test)
        ]
        for form in ("joined", "official", "zipped")
    }
    assert counts["joined"] == counts["official"] == counts["zipped"]
    assert sum(counts["joined"]) == 121 + 56  # 1e-5 of what is published
