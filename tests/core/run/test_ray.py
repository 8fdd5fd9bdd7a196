"""Clients in actors on a Ray cluster: two nodes on this machine, one of which is killed."""

from __future__ import annotations

import csv
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hosts import HERE, hosts
from tests.ray_clusters import cluster, cluster_over
from tests.test_in_processes import measured, run_of, words

from coterie.core import extras
from coterie.core.cli.main import main
from coterie.core.engines import ray_actors
from coterie.core.engines.cut import cut_those_missing
from coterie.core.engines.folder import ClientFolder
from coterie.core.engines.ray_actors import RayActor, Served, connected
from coterie.core.engines.workers import FolderNode, Worker
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.apart import bound_card
from coterie.core.run.on_ray import Cut, on_ray
from coterie.core.settings.schema import build
from coterie.core.tensors.saved import digest

RAY = ["--engine.name", "ray", "--engine.min_clients", "1", "--engine.start", "180"]
PROCESSES = ["--engine.name", "processes", "--engine.processes", "2"]
LATE = 180.0


@pytest.fixture
def ray_cluster() -> Any:
    pytest.importorskip("ray", reason="Ray is not installed")
    with cluster() as found:
        yield found


def actors_of(raylet: int) -> list[int]:
    """Actors with clients among the processes of a node."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == raylet and b"ray::Served" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_two_nodes_give_the_bits_of_one_process(ray_cluster, capsys):
    """One client a folder; private states, what was measured and the ledger too."""
    small = ["--model.hidden", "8", "--rounds", "1", "--compare", "false"]
    command = ["certify-engines", "mtal", *small, "--processes", "2"]
    assert main([*command, "--ray", ray_cluster.address]) == 0
    said = capsys.readouterr().out
    assert "one process beside 2 Ray actors and processes" in said
    assert "the same bits" in said


@pytest.mark.slow
def test_two_hosts_give_the_bits_of_one_process(tmp_path, capsys):
    """Each with a network of its own, which the machine of the server reaches by its address."""
    pytest.importorskip("ray", reason="Ray is not installed")
    small = ["--rounds", "2", "--data.fractions", "[0.8]"]
    command = ["certify-engines", "f3crec", "--preset", "smoke", *small, "--processes", "2"]
    with hosts(2) as there, cluster_over(there, tmp_path) as address:
        all_have_joined(address, {HERE, *(host.address for host in there)})
        assert main([*command, "--ray", address]) == 0
    assert "the same bits" in capsys.readouterr().out


def all_have_joined(head: str, wanted: set[str]) -> None:
    """Wait until a cluster has nodes with these addresses."""
    import ray

    until, found = time.monotonic() + LATE, set[str]()
    with connected(head):
        while found != wanted and time.monotonic() < until:
            time.sleep(0.2)
            found = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    assert found == wanted


@pytest.mark.long
def test_a_node_is_killed_and_its_clients_go_on_elsewhere(
    ray_cluster, tmp_path, capsys, monkeypatch
):
    """The bits of processes, from the folders of what was lost; then on by another engine."""
    spawned, spawn = [], RayActor.spawn

    def counted(actor: RayActor) -> Any:
        spawned.append(time.monotonic())
        return spawn(actor)

    monkeypatch.setattr(RayActor, "spawn", counted)
    more = ["--rounds", "6"]
    assert main(words("f3crec", tmp_path / "processes", *PROCESSES, *more)) == 0
    raylets = [node.all_processes["raylet"][0].process.pid for node in ray_cluster.workers]
    begun, seen = tmp_path / "ray" / "f3crec", list[int]()

    def kill() -> None:
        until = time.monotonic() + LATE
        while not any(begun.glob("*/checkpoints/last.ckpt")) and time.monotonic() < until:
            time.sleep(0.01)
        seen.extend(len(actors_of(raylet)) for raylet in raylets)
        for process in (raylets[0], *actors_of(raylets[0])):  # as a machine that has no power
            os.kill(process, signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    address = ["--engine.address", ray_cluster.address]
    given = words("f3crec", tmp_path / "ray", *RAY, *address, *more)
    assert main([*given, "--trainer.max_epochs", "20"]) == 0
    killing.join()
    assert seen == [1, 1]
    assert len(spawned) > 2  # it was lost while it was needed
    elsewhere = [*PROCESSES, "--engine.address", "null", "--trainer.max_epochs", "24"]
    assert main([*given, *elsewhere, "--resume"]) == 0
    ours = measured(run_of(tmp_path / "ray"))
    theirs = measured(run_of(tmp_path / "processes"))
    assert len(ours) == 24
    assert ours == theirs
    late = [row for row in rows_of(tmp_path / "ray") if float(row["fed/late"] or 0)]
    assert not late  # a parcel that was lost with its actor was asked of another


def rows_of(out: Path) -> list[dict[str, str]]:
    with (run_of(out) / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("auto", "it is no HOST:PORT"),
        (":", "it is no HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there_is_told_in_one_line(address, why, tmp_path, capsys):
    pytest.importorskip("ray", reason="Ray is not installed")
    assert main(words("f3crec", tmp_path, *RAY, "--engine.address", address)) == 2
    said = capsys.readouterr().err.strip()
    assert f"no Ray cluster is reached at '{address}' ({why})" in said
    assert "\n" not in said
    assert not any(tmp_path.rglob("config.yaml")), "a refused run leaves no folder"


def test_who_listens_and_does_not_answer_is_no_cluster(monkeypatch):
    """Ray itself would try for minutes."""
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setattr(ray_actors, "_ANSWER", 6.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        with pytest.raises(UserError, match=f"'{address}' .no answer"), connected(address):
            pass


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'coterie-core\[ray\]'"), connected(None):
        pass


def of_page(root: Path) -> tuple[Any, Any]:
    paper = find_paper("page")
    values = {"data.clients": 4, "rounds": 1, "run.out": str(root), "engine.name": "ray"}
    return paper, build(load(paper.settings), values)


def cut_of(root: Path, run: str = "a run") -> tuple[Cut, Any]:
    paper, settings = of_page(root)
    experiment = load(paper.experiment)(settings)
    federation = experiment.federation()
    ids = {"clients-0": torch.tensor([1, 3]), "clients-1": torch.tensor([0, 2])}
    (root / "server.json").write_text('{"run": "a run", "epoch": 1}')
    return Cut(settings, bound_card(experiment, federation).to_json(), ids, root, run), federation


def test_a_machine_cuts_its_own_clients(tmp_path):
    cut, federation = cut_of(tmp_path)
    there = [tmp_path / "clients-0", tmp_path / "clients-1"]
    there[1].mkdir()
    cut_those_missing(there, cut)
    folder = ClientFolder(there[0])
    assert folder.ids.tolist() == [1, 3]
    data = folder.data(0, folder.client())
    whole = federation.blocks[0]
    wanted = whole.take(torch.isin(whole.ids, folder.ids).nonzero().flatten())
    assert digest(data) == digest(wanted)
    assert not any(there[1].iterdir())  # what is there is left as it is
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "clients-0",
        "clients-1",
        "server.json",
    ]


def test_a_machine_with_other_data_or_another_disk_is_refused(tmp_path):
    cut, _ = cut_of(tmp_path)
    other = replace(cut, settings=replace(cut.settings, seed=5))
    with pytest.raises(UserError, match=rf"{socket.gethostname()} has other data than"):
        cut_those_missing([tmp_path / "clients-0"], other)
    with pytest.raises(UserError, match="does not see the run's folder"):
        cut_those_missing([tmp_path / "clients-0"], replace(cut, run="another"))
    with pytest.raises(UserError, match=r"has no .*elsewhere: choose a place"):
        cut_those_missing([tmp_path / "elsewhere" / "clients-0"], cut)
    assert [one.name for one in tmp_path.iterdir()] == ["server.json"]


def test_what_keeps_an_actor_from_its_clients_is_said(tmp_path):
    here = Served([tmp_path / "clients-0"], None)
    assert "cannot read" in here.trouble()
    cut, _ = cut_of(tmp_path)
    assert Served([tmp_path / "clients-0"], cut).trouble() == ""
    again = Served([tmp_path / "clients-0"], None)
    assert again.trouble() == ""


def test_a_run_with_more_than_settings_is_refused(tmp_path):
    paper, settings = of_page(tmp_path)

    class Mine(load(paper.experiment)):
        pass

    mine = Mine(settings)
    with (
        pytest.raises(UserError, match=r"was given more: set engine\.name to processes"),
        on_ray(mine, mine.federation(), tmp_path),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_an_actor_cuts_once_and_tries_the_next_machine(monkeypatch, caplog):
    """A folder that is lost after the start is not made anew, without its private state."""
    pytest.importorskip("ray", reason="Ray is not installed")
    sent, told = [], ["no disk here", "", "cannot read clients-0"]

    class Remote:
        def options(self, scheduling_strategy: Any, **_: Any) -> Any:
            sent.append(scheduling_strategy.node_id)
            return self

        def remote(self, folders: Any, cut: Any) -> str:
            sent.append(cut)
            return "an actor"

    import ray

    monkeypatch.setattr(ray, "remote", lambda kind: Remote())
    monkeypatch.setattr(ray_actors, "_places", lambda: ["a" * 56, "b" * 56])
    cut = lambda name, folder: None  # noqa: E731
    actor = RayActor([Path("clients-0")], 1.0, cut)
    monkeypatch.setattr(actor, "_told", lambda *_: told.pop(0))
    came, troubles = [], []
    for _ in range(3):
        came.append(actor.comes_up(actor.spawn()))
        troubles.append(actor.trouble)
    assert came == [False, True, False]
    assert troubles == ["no disk here", "", "cannot read clients-0"]
    assert sent == ["a" * 56, cut, "b" * 56, cut, "b" * 56, None]
    assert caplog.messages == ["cannot read clients-0"]


class Mortal(Worker[int]):
    """Ends so many times before it answers."""

    tries = 3

    def __init__(self, deaths: int, births: int = sys.maxsize) -> None:
        super().__init__([Path("one")], 1.0)
        self.deaths, self.births, self.spawned = deaths, births, 0

    def spawn(self) -> int:
        self.spawned += 1
        return self.spawned

    def comes_up(self, handle: int) -> bool:
        return handle <= self.births

    def ended(self, handle: int) -> bool:
        return False

    def talk(self, handle: int, name: str, parcel: bytes) -> bytes | None:
        self.deaths -= 1
        return None if self.deaths >= 0 else parcel

    def end(self, handle: int) -> None: ...


@pytest.mark.parametrize(("deaths", "answered"), [(0, True), (2, True), (3, False)])
def test_a_worker_that_dies_is_started_anew_within_an_ask(deaths, answered):
    worker = Mortal(deaths)
    node = FolderNode(Path("one"), worker)
    assert node.ask(b"parcel", None) == (b"parcel" if answered else None)
    assert worker.spawned == min(deaths + 1, 3)


def test_a_worker_that_never_comes_up_is_not_waited_for():
    worker = Mortal(0, births=0)
    assert FolderNode(Path("one"), worker).ask(b"parcel", None) is None
    assert worker.spawned == 2
