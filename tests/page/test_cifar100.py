"""CIFAR-100 in its official layout, and files that are not."""

import os
import pickle

import numpy as np
import pytest
import torch
from tests.page.official_layouts import (
    channel_means,
    cifar_fields,
    garble,
    placed,
    truncate,
    write_cifar,
)

from coterie.core.errors import UserError
from coterie.page.data.cifar100 import counts, read

FORMS = ("flat", "nested", "tar.gz")


@pytest.fixture
def source(tmp_path):
    return tmp_path / "made" / "cifar-100-python"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keys", [bytes, str])
def test_all_places_give_the_pixels_and_fine_labels(source, tmp_path, form, keys):
    parts = write_cifar(source, keys)
    folder = placed(source, tmp_path / "cifar-100", form)
    before = sorted(tmp_path.rglob("*"))
    for found, name in zip(read(folder), ("train", "test"), strict=True):
        fields = {k.decode() if keys is bytes else k: v for k, v in parts[name].items()}
        assert found.x.dtype == torch.uint8
        assert found.n_classes == 100
        assert found.y.tolist() == fields["fine_labels"]
        # The file has all red pixels by rows, then green, then blue.
        for n, channel, row, column in ((0, 0, 0, 1), (1, 1, 2, 0), (3, 2, 31, 31)):
            expected = fields["data"][n, 1024 * channel + 32 * row + column]
            assert found.x[n, channel, row, column] == expected
    assert sorted(tmp_path.rglob("*")) == before  # nothing is unpacked


def test_counts(source):
    write_cifar(source)
    rows = counts(source)
    assert [(row["part"], row["samples"], row["shape"]) for row in rows] == [
        ("train", 7, "3 x 32 x 32"),
        ("test", 4, "3 x 32 x 32"),
    ]


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


@pytest.mark.parametrize("payload", [Evil(), {b"data": Evil()}, {b"fine_labels": np.sum}])
def test_a_pickle_cannot_run_code(source, tmp_path, monkeypatch, payload):
    monkeypatch.chdir(tmp_path)
    write_cifar(source, train=payload, test=cifar_fields(1, 0))
    with pytest.raises(UserError, match="it names"):
        read(source)
    assert not (tmp_path / "evil").exists()


def changed(**changes):
    return cifar_fields(5, 0) | {name.encode(): value for name, value in changes.items()}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (changed(data=np.zeros((5, 3071), np.uint8)), "not uint8"),
        (changed(data=np.zeros((5, 3072), np.float32)), "not uint8"),
        (changed(data="nothing"), "not uint8"),
        (changed(fine_labels=[1, 2, 3, 4]), "as many whole numbers"),
        (changed(fine_labels=[0.5] * 5), "as many whole numbers"),
        (changed(fine_labels=[0, 1, 2, 3, 100]), "0..99"),
        (changed(fine_labels=[0, 1, 2, 3, -1]), "0..99"),
        (changed(fine_labels=[[1], [2, 3], 4, 5, 6]), "no file of CIFAR-100"),
        ({b"data": np.zeros((5, 3072), np.uint8)}, "no field 'fine_labels'"),
        ([1, 2], "no file of CIFAR-100"),
    ],
)
def test_other_content_is_refused_in_one_line(source, fields, message):
    write_cifar(source, train=fields, test=cifar_fields(1, 0))
    with pytest.raises(UserError, match=message) as caught:
        read(source)
    assert "\n" not in str(caught.value)
    assert str(source) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"text", pickle.dumps(cifar_fields(3, 0))[:500]])
def test_broken_pickles(source, content):
    write_cifar(source)
    (source / "test").write_bytes(content)
    with pytest.raises(UserError, match="is no file of CIFAR-100"):
        read(source)


@pytest.mark.parametrize("spoil", [truncate, garble])
def test_damaged_archives(source, tmp_path, spoil):
    write_cifar(source)
    folder = placed(source, tmp_path / "cifar-100", "tar.gz")
    spoil(folder / "anything.tar.gz")
    with pytest.raises(UserError, match="damaged"):
        read(folder)


def test_missing_files(source, tmp_path):
    write_cifar(source, train=cifar_fields(2, 0))
    for form in FORMS:
        folder = placed(source, tmp_path / form, form)
        with pytest.raises(UserError, match="has no file 'test'"):
            read(folder)
    with pytest.raises(UserError, match=r"there is no CIFAR-100 in .*put cifar-100-python"):
        read(tmp_path / "nowhere")


@pytest.mark.real_data
def test_the_subset_has_its_counts(data_root):
    if not (data_root / "cifar-100").is_dir():
        pytest.skip(f"needs cifar-100 in {data_root}")
    train, test = read(data_root / "cifar-100")
    assert torch.bincount(test.y, minlength=100).unique().tolist() == [100]
    assert torch.bincount(train.y, minlength=100).unique().numel() == 1
    # The means that everybody normalises by.
    expected = torch.tensor([0.5071, 0.4865, 0.4409])
    assert torch.allclose(channel_means(train.x), expected, atol=0.003)
