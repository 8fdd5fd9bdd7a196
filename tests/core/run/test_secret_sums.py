"""Sums behind masks: the numbers of a run without, and nothing for the server but the sum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from tests.hosted import Hosts, TakenApart, bits

from coterie.core.engines import hidden_sums, masks, nodes
from coterie.core.engines.envelope import Parcel, RequestHeader
from coterie.core.engines.masks import Masks, entry, kinds, opened
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation, check_secret
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.certify import in_shards
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.aggregate import AggregateSettings
from coterie.core.settings.schema import build
from coterie.core.tensors import tree
from coterie.core.tensors.rows import DenseRows
from coterie.core.wire.codec import ProtocolError, peek

pytest.importorskip("flwr")
SECRET = {"aggregate.secret": True, "engine.name": "processes"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "f3crec": ("f3crec", {"model.dim": 4, "rounds": 2, "participation": 0.5}),
    "fedavg": ("page", {"method": "fedavg", "data.clients": 6, "rounds": 2, "train.epochs": 1}),
    "scaffold": (
        "page",
        {"method": "scaffold", "data.clients": 6, "rounds": 2, "train.epochs": 1}
        | {"train.weighting": "equal", "privacy.at": "server", "privacy.clip": 1.0}
        | {"privacy.noise": "gaussian", "privacy.scale": 0.01},
    ),
}


def experiment(name: str, out: Path, **more: Any) -> Any:
    paper, values = CASES[name]
    found = find_paper(paper)
    own = {"seed": 3, "run.out": str(out), "logger.wandb": "off", "engine.threads": 1}
    return load(found.experiment)(build(load(found.settings), own | values | more))


def apart(name: str, out: Path, places: int = 3) -> tuple[TakenApart, Federation]:
    given = experiment(name, out, **SECRET)
    plain = experiment(name, out).federation()
    ids = torch.cat([data.ids for data in plain.blocks]).unique()
    shards = [ids[number::places] for number in range(places)]
    plain = replace(plain, noise=given.federation().noise)  # else it would be of another run
    taken = TakenApart.of(given, out, shards, given.federation())
    return taken, replace(plain, exchange=in_shards(plain, shards))


def rounds(run: FederatedRun, count: int = 3) -> FederatedRun:
    while not run.finished and run.round < count:
        run.advance()
    return run


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_sums_that_are_not_hidden(name, tmp_path):
    taken, whole = apart(name, tmp_path)
    with Hosts(taken.folders, **taken.known) as hosts:
        hidden = rounds(taken.over(hosts))
    plain = rounds(FederatedRun(whole))
    for path, value in tree.tensors({"": plain.server_state}):
        found = dict(tree.tensors({"": hidden.server_state}))[path]
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)
    assert hidden.history[-1].keys() == plain.history[-1].keys() - {"cost/local_steps"}
    assert hidden.ledger.rows() == plain.ledger.rows()


def test_what_leaves_a_place_is_noise(tmp_path, monkeypatch):
    """Uniform in 64 bits, and no two replies have a number in common."""
    taken, _ = apart("fedavg", tmp_path)
    totals: list[Any] = []

    def overheard(request, parts, bounds):
        totals.extend(one.total for one in parts)
        return hidden_sums.sum_of(request, parts, bounds)

    monkeypatch.setattr(nodes, "sum_of", overheard)
    with Hosts(taken.folders, **taken.known) as hosts:
        rounds(taken.over(hosts), 1)
    assert len(totals) == 3
    each = [torch.cat([leaf.flatten() for _, leaf in tree.tensors(one)]) for one in totals]
    for numbers in each:
        assert numbers.dtype == torch.int64
        uniform = (numbers.double().numpy() + 2.0**63) / 2.0**64
        assert stats.kstest(uniform, "uniform").pvalue > 1e-4
    assert not torch.isin(each[0], each[1]).any()


def places(root: Path, count: int) -> list[Masks]:
    made = []
    for number in range(count):
        (root / str(number)).mkdir()
        made.append(Masks(root / str(number)))
    return made


def total(seed: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(40, generator=draw),
        "rows": DenseRows(torch.randn(1, 3, 2, generator=draw, dtype=torch.float64)),
        "n": torch.randint(0, 10**6, (2,), generator=draw),
    }


def roster_of(some: list[Masks], since: str = "") -> dict[str, list[str]]:
    return {
        str(number): entry(one.public, torch.tensor([number]), since)
        for number, one in enumerate(some)
    }


@pytest.mark.parametrize("count", [3, 4, 7])
def test_masks_are_gone_in_the_sum_of_all_and_of_nobody_less(count, tmp_path):
    some = places(tmp_path, count)
    roster = roster_of(some)
    hidden = [one.hidden(total(n), roster, roster[str(n)], "x") for n, one in enumerate(some)]
    added = hidden[0]
    for one in hidden[1:]:
        less = opened(added, kinds(total(0)))
        assert float(less["w"].abs().max()) > 1e6
        added = tree.map_tensors(torch.add, added, one)
    found = opened(added, kinds(total(0)))
    expected = total(0)
    for number in range(1, count):
        expected = tree.map_tensors(torch.add, expected, total(number))
    torch.testing.assert_close(found["w"], expected["w"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found["rows"].values, expected["rows"].values, atol=1e-8, rtol=1e-8)
    assert torch.equal(found["n"], expected["n"])
    assert found["w"].dtype == torch.float32


def test_nothing_else_is_hidden_behind_the_same_masks(tmp_path):
    """Else the difference of two replies would be that of two sums."""
    some = places(tmp_path, 4)
    first, later, fewer = roster_of(some), roster_of(some, "later"), roster_of(some[:3])
    zero = {"w": torch.zeros(50)}
    seen = [
        some[0].hidden(zero, given, given["0"], about)["w"]
        for given, about in ((first, "x"), (first, "y"), (later, "x"), (fewer, "x"))
    ]
    again = some[0].hidden(zero, dict(reversed(first.items())), first["0"], "x")["w"]
    assert torch.equal(again, seen[0])
    numbers = torch.cat(seen)
    assert numbers.unique().numel() == numbers.numel()


def test_a_place_hides_behind_no_roster_that_is_not_its_own(tmp_path):
    some = places(tmp_path, 4)
    roster, mine = roster_of(some), roster_of(some)["0"]
    two = {name: roster[name] for name in ("0", "1")}
    alone = {name: roster["0" if name == "0" else "1"] for name in roster}  # one behind three names
    other = roster | {"0": entry(some[0].public, torch.tensor([9]), "")}
    twice = roster | {"1": mine}
    for wrong in (two, alone, other, twice, {}):
        with pytest.raises(ProtocolError, match="the roster is not theirs"):
            some[0].hidden({"w": torch.zeros(2)}, wrong, mine, "x")
    with pytest.raises(ProtocolError, match="too large to be hidden"):
        some[0].hidden({"w": torch.full((2,), 1e9)}, roster, mine, "x")
    with pytest.raises(ProtocolError, match="what is no key"):
        some[0].hidden({"w": torch.zeros(2)}, roster | {"1": ["x", "y"]}, mine, "x")


def test_keys_are_kept_and_nobody_else_s(tmp_path):
    one, other = places(tmp_path, 2)
    assert one.public == Masks(one.folder).public != other.public
    assert (one.folder / masks.KEY).stat().st_mode & 0o077 == 0


def test_a_round_in_which_one_is_missing_is_tried_again(tmp_path):
    """With the numbers of a run in which it was there."""
    taken, _ = apart("fedavg", tmp_path / "a")
    smooth = taken.copied(tmp_path / "smooth")
    with Hosts(smooth.folders, **smooth.known) as hosts:
        expected = rounds(smooth.over(hosts), 2)
    lost = []
    with Hosts(taken.folders, **taken.known) as hosts:
        node, ask = hosts.hosts[1], hosts.hosts[1].ask

        def sometimes(parcel: bytes, seconds: float | None) -> bytes | None:
            header = peek(Parcel.read(parcel).messages[-1], header=RequestHeader)
            if header.step == "update" and not lost:
                lost.append(header)
                return None
            return ask(parcel, seconds)

        node.ask = sometimes  # type: ignore[method-assign]
        found = rounds(taken.over(hosts), 2)
    assert len(lost) == 1
    assert bits(found.server_state) == bits(expected.server_state)


def test_a_server_that_asks_without_masks_gets_nothing(tmp_path):
    """Folded or one by one: the card says otherwise."""
    taken, _ = apart("fedavg", tmp_path)
    with Hosts(taken.folders, **taken.known) as hosts:
        run = taken.over(hosts)
        federation = replace(run.federation, secret=False)
        with pytest.raises(UserError, match="sums leave behind masks, and 'update' was asked"):
            FederatedRun(federation).advance()


def test_too_few_places(tmp_path):
    taken, _ = apart("fedavg", tmp_path, places=2)
    with Hosts(taken.folders, **taken.known) as hosts:
        run = taken.over(hosts)
        with pytest.raises(UserError, match="takes clients of 3 processes or machines"):
            run.advance()


def test_who_looks_at_single_clients_is_refused(tmp_path):
    page = find_paper("page")
    own = {"run.out": str(tmp_path), "data.clients": 4, **SECRET}
    given = load(page.experiment)(build(load(page.settings), own))
    with pytest.raises(UserError, match="PageServer looks at single clients"):
        given.federation()
    with pytest.raises(UserError, match="looks at single clients"):
        check_secret(type("Other", (), {"sums": False})(), True)  # type: ignore[arg-type]
    whole = experiment("fedavg", tmp_path, **{"aggregate.secret": True}).federation()
    with pytest.raises(UserError, match="all clients are in this process"):
        FederatedRun(whole).advance()
    with pytest.raises(UserError, match="hides what a rule would compare"):
        AggregateSettings(rule="median", secret=True)


def test_two_places_draw_the_same_however_they_take_it():
    stream, other = (masks._Stream(b"k" * 32, "x") for _ in range(2))
    assert torch.equal(torch.cat([stream.take(3), stream.take(5)]), other.take(8))
    for different in (masks._Stream(b"j" * 32, "x"), masks._Stream(b"k" * 32, "y")):
        assert not torch.equal(different.take(3), masks._Stream(b"k" * 32, "x").take(3))
