"""Tasks from settings: what clients and the server hold, for every data set."""

import subprocess
import sys

import pytest
import torch
from tests.page.official_layouts import (
    cifar_fields,
    decode,
    leaf_user,
    write_cifar,
    write_leaf,
    write_tiny,
)

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.page.data.make import make_task
from coterie.page.data.shakespeare import windows
from coterie.page.settings import TaskSettings
from coterie.page.tasks import TASKS

KEY = Key.from_seed(2)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def cifar(tmp_path):
    train, test = cifar_fields(600, 0), cifar_fields(50, 1)
    train[b"fine_labels"] = [k % 4 for k in range(600)]
    write_cifar(tmp_path / "cifar-100" / "cifar-100-python", train=train, test=test)
    return tmp_path


def pictures_of(samples):
    return sorted(bytes(x.flatten()[:40].tolist()) for x in samples["x"])


@pytest.mark.parametrize("more", [{}, {"quantity_skew": 0.5}, {"partition": "shards"}])
def test_clients_and_server_hold_all_pictures_once(cifar, more):
    settings = TaskSettings(name="cifar-100", root=str(cifar), clients=6, **more)
    task = make_task(settings, KEY)
    assert (task.name, task.n_classes, len(task.clients)) == ("cifar-100", 100, 6)
    parts = (task.clients.train, task.clients.valid, task.clients.test)
    held = [picture for part in parts for picture in pictures_of(part.samples)]
    data = torch.from_numpy(cifar_fields(600, 0)[b"data"]).reshape(600, 3, 32, 32)
    assert sorted(held) == pictures_of({"x": data})
    assert len(task.server_valid["y"]) == 10
    assert len(task.server_test["y"]) == 40
    if not more:
        assert task.clients.test.lengths.tolist() == [30] * 6
        assert task.clients.valid.lengths.tolist() == [7] * 6
        assert task.clients.train.lengths.tolist() == [63] * 6
    if "quantity_skew" in more:
        assert task.clients.lengths.unique().numel() > 1
    first, again, other = (
        make_task(settings, key).clients.train.samples["x"][:9]
        for key in (KEY, KEY, Key.from_seed(3))
    )
    assert torch.equal(again, first)
    assert not torch.equal(other, first)


def test_some_pictures_are_drawn_for_a_small_trial(cifar):
    def held(key, **more):
        settings = TaskSettings(name="cifar-100", root=str(cifar), clients=6, **more)
        task = make_task(settings, key)
        parts = (task.clients.train, task.clients.valid, task.clients.test)
        own = [picture for part in parts for picture in pictures_of(part.samples)]
        return own, pictures_of(task.server_valid) + pictures_of(task.server_test)

    (some, of_server), (everything, all_of_server) = held(KEY, samples=48), held(KEY)
    assert (len(some), len(of_server)) == (48, 48)
    assert set(some) < set(everything)
    assert set(of_server) < set(all_of_server)
    assert set(held(Key.from_seed(3), samples=48)[0]) != set(some)
    assert held(KEY, samples=10_000) == (everything, all_of_server)


def test_label_skew_decides_the_classes_of_a_client(cifar):
    def classes(skew):
        settings = TaskSettings(name="cifar-100", root=str(cifar), clients=6, label_skew=skew)
        train = make_task(settings, KEY).clients.train
        each = (train.take(torch.tensor([c])).samples["y"] for c in range(6))
        return sum(int((torch.bincount(y, minlength=4) / len(y)).max() > 0.5) for y in each)

    assert classes(0.05) >= 4
    assert classes(1000.0) == 0


def test_tiny_imagenet(tmp_path):
    write_tiny(tmp_path / "tiny-imagenet-200" / "tiny-imagenet-200", per_class=10, n_val=10)
    settings = TaskSettings(name="tiny-imagenet-200", root=str(tmp_path), clients=3)
    task = make_task(settings, KEY)
    assert task.clients.train.samples["x"].shape[1:] == (3, 64, 64)
    assert task.clients.test.lengths.tolist() == [3, 3, 3]
    assert (len(task.server_valid["y"]), len(task.server_test["y"])) == (2, 8)


def role_text(name, n):
    return "".join(f"{name} says {k} and " for k in range(n))[: n + 80]


@pytest.fixture
def roles(tmp_path):
    users = {name: leaf_user(role_text(name, 8100), 8100) for name in ("HAL", "NED", "POINS")}
    write_leaf(tmp_path / "shakespeare" / "train" / "all.json", users)
    return tmp_path


def test_roles_are_cut_in_the_order_of_the_play(roles):
    settings = TaskSettings(name="shakespeare", root=str(roles), clients=3)
    task = make_task(settings, KEY)
    parts = task.clients.train, task.clients.valid, task.clients.test
    assert [part.lengths.tolist() for part in parts] == [[4410] * 3, [490] * 3, [2100] * 3]
    x, y = windows(role_text("NED", 8100))
    own = [part.take(torch.tensor([1])).samples for part in parts]
    assert torch.equal(torch.cat([samples["x"] for samples in own]), x[:7000])
    assert torch.equal(torch.cat([samples["y"] for samples in own]), y[:7000].long())
    held = [samples["x"].reshape(3, -1, 80)[1] for samples in (task.server_valid, task.server_test)]
    assert torch.equal(torch.cat(held), x[7000:8000])
    assert [len(part) for part in held] == [200, 800]
    assert decode(own[0]["x"][0]).startswith("NED says 0")


def test_the_first_samples_of_each_role_serve_a_small_trial(roles):
    settings = TaskSettings(name="shakespeare", root=str(roles), clients=3, samples=60)
    task = make_task(settings, KEY)
    parts = task.clients.train, task.clients.valid, task.clients.test
    assert [part.lengths.tolist() for part in parts] == [[13] * 3, [1] * 3, [6] * 3]
    x, _ = windows(role_text("NED", 8100))
    own = [part.take(torch.tensor([1])).samples["x"] for part in parts]
    assert torch.equal(torch.cat(own), x[:20])
    assert (len(task.server_valid["y"]), len(task.server_test["y"])) == (12, 48)
    held = task.server_valid["x"].reshape(3, -1, 80)[1]
    assert torch.equal(held, x[7000:7004])


def test_roles_are_drawn_by_the_key(roles):
    settings = TaskSettings(name="shakespeare", root=str(roles), clients=1)

    def role(seed):
        task = make_task(settings, Key.from_seed(seed))
        return decode(task.clients.train.samples["x"][0]).split()[0]

    assert {role(seed) for seed in range(12)} == {"HAL", "NED", "POINS"}


def test_synthetic_tasks_take_their_settings():
    task = make_task(TaskSettings(clients=4), KEY, torch.float64)
    assert len(task.clients) == 4
    assert task.clients.train.samples["x"].dtype == torch.float64
    assert task.clients.lengths.unique().tolist() == [210]
    skewed = make_task(TaskSettings(clients=4, quantity_skew=0.5), KEY)
    assert skewed.clients.lengths.unique().numel() > 1
    assert len(make_task(TaskSettings(name="synthetic-fedprox"), KEY).clients) == 30


@pytest.mark.parametrize("name", ["synthetic", "synthetic-fedprox"])
def test_feature_skew_moves_all_features_of_a_client_alike(name):
    def spread(beta):
        task = make_task(TaskSettings(name=name, clients=40, feature_skew=beta), KEY, torch.float64)
        parts = task.clients.train.samples["x"].split(task.clients.train.lengths.tolist())
        return torch.stack([part.mean() for part in parts]).std()

    # The mean over d features of v_ij ~ N(B_i, 1) has the variance beta² + 1/d.
    assert spread(0.0) < 0.3
    assert 3.0 < spread(5.0) < 7.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "shakespeare"}, "3 roles have 8000 samples, fewer than the 100 clients"),
        (
            {"name": "shakespeare", "clients": 3, "samples": 2},
            "'data.samples' is 2: give each of the 3 clients one",
        ),
        ({"name": "cifar"}, "'cifar' is no task of PAGE.*did you mean 'cifar-100'"),
        ({"name": "ml-100k"}, "no task of PAGE, which takes labelled samples"),
        ({"name": "shakespeare", "root": "/nowhere"}, r"put its files into .*LEAF"),
    ],
)
def test_what_cannot_be_met_ends_in_one_line(roles, settings, message):
    with pytest.raises(UserError, match=message) as caught:
        make_task(TaskSettings(**{"root": str(roles), **settings}), KEY)
    assert "\n" not in str(caught.value)


def test_more_clients_than_pictures(cifar):
    for more, least, remedy in (
        ({"clients": 601}, 1, "lower data.clients, or raise data.samples"),
        ({"samples": 3, "clients": 4}, 1, "lower data.clients, or raise data.samples"),
        ({"clients": 5, "partition": "shards", "shards": 200}, 200, "data.clients or data.shards"),
    ):
        said = f"cannot give {least} to each of {more['clients']} clients: .*{remedy}"
        with pytest.raises(UserError, match=said):
            make_task(TaskSettings(name="cifar-100", root=str(cifar), **more), KEY)


def test_names_are_torch_free_and_complete():
    code = "import sys, coterie.page.tasks;print({'torch', 'numpy', 'PIL'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    for entry in TASKS:
        assert entry.kind == "samples"
        assert not entry.files or (entry.reader and (entry.url or entry.by_hand))


@pytest.mark.long
@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("cifar-100", (126, 14, 60)), ("tiny-imagenet-200", (63, 7, 30)), ("shakespeare", None)],
)
@pytest.mark.usefixtures("_home", "decoded_once")
def test_the_subsets_serve_100_clients(data_root, name, sizes):
    if not (data_root / name).is_dir():
        pytest.skip(f"needs {name} in {data_root}")
    task = make_task(TaskSettings(name=name, root=str(data_root)), KEY)
    parts = (task.clients.train, task.clients.valid, task.clients.test)
    for part, size in zip(parts, sizes or (4410, 490, 2100), strict=True):
        assert part.lengths.tolist() == [size] * 100
