"""Tiny-ImageNet in its official layout, the cache of decoded pictures, and files that are not."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from tests.page.official_layouts import (
    WNIDS,
    channel_means,
    jpeg,
    pack,
    placed,
    truncate,
    write_tiny,
)

from coterie.core.errors import UserError
from coterie.page.data import tiny_imagenet
from coterie.page.data import tiny_imagenet as decoded
from coterie.page.data.tiny_imagenet import counts, read

FORMS = ("flat", "nested", "tar.gz", "zip")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "made" / "tiny-imagenet-200"
    write_tiny(folder)
    return folder


def cached(home):
    return sorted((home / ".cache" / "coterie" / "decoded").iterdir())


@pytest.mark.parametrize("form", FORMS)
def test_all_places_give_the_same(source, tmp_path, form):
    train, val = read(placed(source, tmp_path / "root", form))
    assert (train.x.shape, val.x.shape) == ((6, 3, 64, 64), (4, 3, 64, 64))
    assert train.x.dtype == torch.uint8
    # Ordered by path; numbered by the line in wnids.txt, whose order is another.
    assert train.y.tolist() == [1, 1, 0, 0, 2, 2]
    assert val.y.tolist() == [0, 1, 2, 0]
    assert train.n_classes == len(WNIDS)
    # Pillow decodes one picture on its own.
    path = source / "train" / "n01" / "images" / "n01_1.JPEG"
    expected = np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(train.x[1].numpy(), expected)
    assert train.x[2].unique().numel() == 1  # the grey one, in three equal channels
    assert [row["samples"] for row in counts(tmp_path / "root")] == [6, 4]


@pytest.mark.parametrize("form", ["nested", "zip"])
def test_decoded_pictures_are_kept_until_the_source_changes(
    source, tmp_path, home, monkeypatch, form
):
    folder = placed(source, tmp_path / "root", form)
    first = read(folder)[0].x
    (kept,) = cached(home)
    with monkeypatch.context() as patch:
        patch.setattr(tiny_imagenet, "_decode", None)
        assert torch.equal(read(folder)[0].x, first)
    picture = source / "train" / "n02" / "images" / "n02_0.JPEG"
    picture.write_bytes(jpeg((9, 99, 9)))
    if form == "zip":
        pack(source, folder / "anything.zip")
    else:
        (folder / picture.relative_to(source.parent)).write_bytes(picture.read_bytes())
    assert not torch.equal(read(folder)[0].x, first)
    assert len(cached(home)) == 1
    assert cached(home) != [kept]


def test_a_damaged_cache_is_made_anew(source, home):
    first = read(source)[0].x
    (kept,) = cached(home)
    for content in (b"", b"junk", kept.read_bytes()[:3000]):
        kept.write_bytes(content)
        assert torch.equal(read(source)[0].x, first)


def test_a_cache_that_cannot_be_written_costs_time_only(source, home, caplog):
    home.write_text("a file")
    assert len(read(source)[0]) == 6
    assert "not kept" in caplog.text


def test_nothing_is_kept_of_what_failed(home, monkeypatch, tmp_path):
    def broken(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decoded.np, "savez", broken)
    found = decoded.decoded("x", tmp_path, lambda: {"a": np.ones(2)})
    assert found["a"].tolist() == [1, 1]
    assert cached(home) == []


def edited(path, change):
    path.write_text(change(path.read_text()))


def test_missing_and_wrong_labels(source):
    notes = source / "val" / "val_annotations.txt"
    text = notes.read_text()
    for change, message in (
        (text.replace("val_2.JPEG", "other.JPEG"), "val_2.JPEG has no label, it has no annotation"),
        (text.replace("n03", "n99"), "'n99' is not in wnids.txt"),
        ("val_0.JPEG\n", "not FILE<TAB>CLASS"),
    ):
        notes.write_text(change)
        with pytest.raises(UserError, match=message):
            read(source)
    notes.write_text(text)
    edited(source / "wnids.txt", lambda wnids: wnids.replace("n01\n", ""))
    with pytest.raises(UserError, match=r"'n01' is not in wnids\.txt"):
        read(source)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no picture"),
        (b"text", "is no picture"),
        (jpeg((1, 2, 3))[:300], "is no picture"),
        (jpeg((1, 2, 3), size=(64, 63)), "not 64 x 64"),
    ],
)
def test_broken_pictures_are_named(source, home, content, message):
    (source / "val" / "images" / "val_3.JPEG").write_bytes(content)
    with pytest.raises(UserError, match=f"val_3.JPEG {message}|val_3.JPEG .*{message}"):
        read(source)
    assert not (home / ".cache").exists()


def test_other_formats_than_jpeg_are_refused(source):
    content = io.BytesIO()
    Image.new("RGB", (64, 64)).save(content, "PNG")
    (source / "val" / "images" / "val_3.JPEG").write_bytes(content.getvalue())
    with pytest.raises(UserError, match="is no picture"):
        read(source)


@pytest.mark.parametrize("name", ["val/val_annotations.txt", "train", "val/images"])
def test_missing_parts(source, name):
    (source / name).rename(source / "elsewhere")
    with pytest.raises(UserError, match=r"has no .*fetch tiny-imagenet-200\.zip again"):
        read(source)


@pytest.mark.parametrize("form", ["tar.gz", "zip"])
def test_damaged_archives(source, tmp_path, form):
    folder = placed(source, tmp_path / "root", form)
    truncate(folder / f"anything.{form}")
    with pytest.raises(UserError, match="damaged"):
        read(folder)


def test_nothing_there(tmp_path):
    with pytest.raises(UserError, match=r"there is no Tiny-ImageNet in .*put tiny-imagenet-200"):
        read(tmp_path)


@pytest.mark.real_data
@pytest.mark.usefixtures("home", "decoded_once")
def test_the_subset_has_its_counts(data_root):
    if not (data_root / "tiny-imagenet-200").is_dir():
        pytest.skip(f"needs tiny-imagenet-200 in {data_root}")
    train, val = read(data_root / "tiny-imagenet-200")
    for part in (train, val):
        assert torch.bincount(part.y, minlength=200).unique().numel() == 1
        assert part.n_classes == 200
    assert torch.allclose(
        channel_means(train.x), torch.tensor([0.4802, 0.4481, 0.3975]), atol=0.003
    )
