"""Data sets of labelled samples among those of interactions: listing, fetching, refusals."""

import functools
import hashlib
import http.server
import io
import json
import threading
import zipfile
from dataclasses import replace

import pytest

from coterie.core.cli.main import main
from coterie.core.data.sources.catalogue import (
    data_folder,
    download,
    list_data,
    load,
    sample_counts,
)
from coterie.core.errors import UserError
from coterie.core.registry import data_sets as names
from coterie.core.registry.data_sets import find_file
from coterie.core.registry.papers import DataSet

PICTURES = DataSet(
    name="pictures",
    about="three pictures",
    terms="none",
    core=0,
    files=("pictures/index", "*.tar.gz", "*.zip"),
    reader="nowhere:unused",
    kind="samples",
)
DRAWN = DataSet(name="drawn", about="made up", terms="free", core=0, kind="samples")


def count_lines(folder):
    """A reader: one part, a sample a line."""
    lines = find_file(folder, *PICTURES.files).read_text().splitlines()
    return [{"part": "all", "samples": len(lines)}]


@pytest.fixture
def known(monkeypatch):
    entry = replace(PICTURES, reader=f"{__name__}:count_lines")
    monkeypatch.setitem(names.DATA_SETS, "pictures", entry)
    monkeypatch.setitem(names.DATA_SETS, "drawn", DRAWN)
    return entry


@pytest.fixture
def here(known, tmp_path):
    (tmp_path / "pictures" / "pictures").mkdir(parents=True)
    (tmp_path / "pictures" / "pictures" / "index").write_text("a\nb\nc\n")
    return tmp_path


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(_Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_patterns_find_files_in_order(tmp_path):
    assert find_file(tmp_path / "nowhere", "*.zip") is None
    for name in ("b.tar.gz", "a.tar.gz", "z.txt.gz"):
        (tmp_path / name).write_text("")
    (tmp_path / "0.tar.gz").mkdir()
    assert find_file(tmp_path, "x", "*.tar.gz").name == "a.tar.gz"
    assert find_file(tmp_path, "z.txt", "*.tar.gz").name == "z.txt.gz"


def test_they_are_listed_with_what_is_here(here):
    found = {entry.name: entry for entry in list_data(here)}
    assert found["pictures"].present
    assert found["pictures"].users is None
    assert found["drawn"].present
    assert found["drawn"].folder is None
    (here / "pictures" / "pictures" / "index").unlink()
    assert not {entry.name: entry for entry in list_data(here)}["pictures"].present


def test_one_is_shown(here, capsys):
    main(["data", "pictures", "--data_root", str(here), "--json"])
    (part,) = json.loads(capsys.readouterr().out)
    assert part == {"name": "pictures", "part": "all", "samples": 3}
    main(["data", "drawn", "--data_root", str(here)])
    assert "when a run begins" in capsys.readouterr().out
    main(["data", "pictures", "--data_root", str(here)])
    assert "three pictures" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--data.min_interactions=3", "--data.columns=user=u"])
def test_flags_of_interactions_are_refused(here, flag, capsys):
    assert main(["data", "pictures", "--data_root", str(here), flag]) == 2
    assert "leave them out" in " ".join(capsys.readouterr().err.split())


def test_recommenders_refuse_samples(here):
    with pytest.raises(UserError, match="labelled samples, not interactions") as caught:
        load("pictures", here)
    assert "\n" not in str(caught.value)


def test_their_folder_is_found(known, here):
    assert data_folder(known, here) == here / "pictures"
    assert sample_counts("drawn", here) == []


def test_missing_without_address(known, tmp_path):
    with pytest.raises(UserError, match=r"put its files into .*pictures \(from a friend\)"):
        download(replace(known, by_hand="from a friend"), tmp_path)


@pytest.mark.parametrize("digest", [True, False])
def test_archives_stay_packed(known, site, tmp_path, digest):
    folder, address = site
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("pictures/index", "a\n")
    (folder / "p.zip").write_bytes(content.getvalue())
    md5 = hashlib.md5(content.getvalue()).hexdigest() if digest else ""
    place = download(replace(known, url=address + "p.zip", md5=md5), tmp_path / "root")
    assert [path.name for path in place.iterdir()] == ["p.zip"]
    assert (place / "p.zip").read_bytes() == content.getvalue()
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["pictures"]


@pytest.mark.parametrize(
    ("name", "md5", "message"),
    [("p.zip", "", "is damaged"), ("p.tar.gz", "0" * 32, "digest"), ("q.zip", "", "not found")],
)
def test_nothing_stays_of_a_failed_download(known, site, tmp_path, name, md5, message):
    folder, address = site
    for file in ("p.zip", "p.tar.gz"):
        (folder / file).write_bytes(b"no archive")
    with pytest.raises(UserError, match=f"(?i){message}"):
        download(replace(known, url=address + name, md5=md5), tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_a_folder_without_them_says_what_to_put_there(known, tmp_path):
    (tmp_path / "pictures").mkdir()
    with pytest.raises(UserError, match=r"has no pictures/index or \*\.tar\.gz .*put it, packed"):
        download(replace(known, url="http://127.0.0.1:9/p.zip"), tmp_path)
