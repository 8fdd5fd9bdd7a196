"""What no exchange accepts: the bad updates that stop or take over other federations."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch
from tests.core.liars import LIES, Liars, ListLiars, Model, Own
from tests.hosted import Hosts, each_alone, make_folders

from coterie.core.engines.envelope import Parcel, ReplyHeader
from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.in_process import InProcess
from coterie.core.federation.ledger import Ledger
from coterie.core.methods.kit.uploads import Weighted
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import Up, declared
from coterie.core.protocol.uploads import Bounds, Sum
from coterie.core.registry.papers import load, papers
from coterie.core.tensors.keys import Key
from coterie.core.wire.codec import decode, encode

SECRET = Key.from_seed(4).fold("clients")
DATA = Own(torch.tensor([2, 5, 9]))
LIAR = 5
DOWN = Model({"w": torch.zeros(20, 8)})


def exchange(kind, tmp_path, lie):
    match kind:
        case "stacked":
            return InProcess(Liars(LIAR, lie), {0: DATA}, SECRET.fold, chunk=1)
        case "list":
            return InProcess(ListLiars(LIAR, lie), {0: DATA}, SECRET.fold)
    client = ListLiars(LIAR, lie) if kind == "list behind bytes" else Liars(LIAR, lie)
    form = {"form": "list"} if kind == "list behind bytes" else {}
    folders = make_folders(tmp_path, {0: DATA}, SECRET, each_alone(DATA.ids), **form)
    return Hosts(folders, client)


def ask(found, number=1, **options):
    cohort = ExchangeCohort(found, found.present(0), (0, number), Ledger(), Journal())
    cohort.enrol()
    step = (ListLiars if isinstance(_client(found), ListLiars) else Liars).steps()["update"]
    return cohort.ask(step, DOWN, **options), cohort


def _client(found):
    return found.client if isinstance(found, InProcess) else found.hosts[0].client


def count_of(found, client):
    """Rounds that a client has in its private state."""
    if not isinstance(found, InProcess):
        place = DATA.ids.tolist().index(client)
        found = found.hosts[place].host.exchange
    return float(found.store.take(torch.tensor([client])).count)


EXCHANGES = ("stacked", "list", "behind bytes", "list behind bytes")


@pytest.fixture(scope="module")
def truths(tmp_path_factory):
    """What the honest answer, for each kind of exchange."""
    folder = tmp_path_factory.mktemp("honest")
    return {kind: ask(exchange(kind, folder / kind, None))[0] for kind in EXCHANGES}


@pytest.mark.parametrize("kind", EXCHANGES)
@pytest.mark.parametrize(
    ("lie", "reduce"),
    [
        *((lie, None) for lie in LIES),
        *((lie, Sum()) for lie in ("nan", "other key", "infinite state")),
        *((lie, Weighted("samples")) for lie in ("nan", "other key", "huge count")),
    ],
)
def test_a_bad_update_is_refused_by_name_and_changes_nothing(kind, lie, reduce, tmp_path, truths):
    found = exchange(kind, tmp_path, lie)
    replies, cohort = ask(found, **({} if reduce is None else {"reduce": reduce}))
    honest = truths[kind]
    assert replies.ids.tolist() == [2, 9]
    assert list(replies.failed) == [LIAR]
    assert [who for _, who, _ in cohort.journal.refused] == [LIAR]
    assert [count_of(found, client) for client in (2, LIAR, 9)] == [1.0, 0.0, 1.0]
    ups = honest.ups if hasattr(honest, "ups") else None
    of = {c: ups[c].change["w"] if ups else honest.up.change["w"][p] for p, c in ((0, 2), (2, 9))}
    if isinstance(reduce, Sum):
        assert torch.equal(replies.total.change["w"], of[2] + of[9])
    elif reduce is not None:
        assert torch.equal(replies.total.sums.change["w"], 5 * of[2] + 5 * of[9])
        assert int(replies.total.weight) == 10


@pytest.mark.parametrize("kind", ["stacked", "list"])
def test_a_bug_in_a_client_of_this_process_is_seen(kind, tmp_path):
    """It is the developer's: nothing is swallowed."""
    with pytest.raises(RuntimeError, match="4711"):
        ask(exchange(kind, tmp_path, "crash"))


def test_a_client_that_fails_elsewhere_is_left_out_and_tells_nothing(tmp_path, capsys):
    found = exchange("behind bytes", tmp_path, "crash")
    replies, _ = ask(found)
    assert replies.ids.tolist() == [2, 9]
    assert replies.failed == {LIAR: "the step failed on the client's side"}
    assert "4711" in capsys.readouterr().err  # on its own machine it is told


class Forged:
    """The liar's node, whose bytes are changed on their way."""

    def __init__(self, node, forge):
        self.node, self.forge, self.name, self.seen = node, forge, node.name, []

    def give_up(self):
        self.node.give_up()

    def ask(self, request, seconds):
        reply = self.node.ask(request, seconds)
        if Parcel.read(request).requests()[-1].step.startswith("@"):
            return reply  # it enrols and is present as the others
        self.seen.append(reply)
        return self.forge(self, request, reply)


def _changed(reply, **changes):
    up, header = decode(reply, load("tests.core.liars:Change"), header=ReplyHeader)
    return encode(up, dataclasses.replace(header, **changes))


def _claims(reply: bytes, *clients: int) -> bytes:
    return _changed(reply, clients=torch.tensor(clients, dtype=torch.int64))


def _lying_header(reply: bytes) -> bytes:
    """The shape says more than there are bytes."""
    return reply.replace(b'"shape":[1,20,8]', b'"shape":[1,99,8]', 1)


FORGERIES = {
    "garbage": lambda f, request, reply: b"\x00garbage" * 40,
    "nothing": lambda f, request, reply: b"",
    "pickle": lambda f, request, reply: pickle.dumps({"w": 1}),
    "a header that lies": lambda f, request, reply: _lying_header(reply),
    "in another's name": lambda f, request, reply: _claims(reply, 2),
    "in its own and another's": lambda f, request, reply: _changed(
        reply, clients=torch.tensor([5, 2])
    ),
    "twice": lambda f, request, reply: _claims(reply, 5, 5),
    "for more than it has": lambda f, request, reply: _claims(reply),
    "of an earlier round": lambda f, request, reply: f.seen[0],
    "folded unasked": lambda f, request, reply: _changed(reply, folded=True),
    "followed by more": lambda f, request, reply: reply + b" " * (1 << 20),
    "too long": lambda f, request, reply: _changed(reply, refused={"9": "x" * (1 << 20)}),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_bytes_that_no_honest_client_sends_are_refused(forgery, tmp_path):
    found = exchange("behind bytes", tmp_path, None)
    ask(found)
    liar = found.members[1].node = Forged(found.hosts[1], lambda f, request, reply: reply)
    assert ask(found, 2)[0].ids.tolist() == [2, 5, 9]
    liar.forge = FORGERIES[forgery]
    replies, _ = ask(found, 3)
    assert replies.ids.tolist() == [2, 9]
    assert list(replies.failed) == [LIAR]


@pytest.mark.parametrize("kind", EXCHANGES)
def test_bounds_are_the_federations_own(kind, tmp_path):
    found = exchange(kind, tmp_path, None)
    found.bounds = Bounds(count=4)
    assert ask(found)[0].ids.tolist() == []
    found = exchange(kind, tmp_path / "norm", None)
    found.bounds = Bounds(norm=1e-3)
    replies, _ = ask(found)
    assert set(replies.failed.values()) == {"upload 'change' has a norm over the bound of 0.001"}


def test_a_fold_is_bounded_by_the_weights_that_clients_may_have(tmp_path):
    found = exchange("behind bytes", tmp_path, None)

    def heavier(f, request, reply):
        total, header = decode(reply, Weighted("samples").result(_change()), header=ReplyHeader)
        weight = torch.tensor(10**15)
        return encode(dataclasses.replace(total, weight=weight), header)

    found.members[1].node = Forged(found.hosts[1], heavier)
    replies, _ = ask(found, reduce=Weighted("samples"))
    assert replies.failed == {LIAR: "the fold's weight is out of bounds"}


def _change():
    return load("tests.core.liars:Change")


UNJUDGED = {  # uploads whose form only the method that reads them can judge
    ("ItemGradients", "cipher"),
    ("ItemGradients", "parts"),
    ("BitVotes", "votes"),
    ("ClientKeys", "public"),
    ("ClientKeys", "wrapped"),
    ("Announcement", "tokens"),
    ("Quality", "held"),
}


def test_every_upload_of_the_papers_and_methods_says_what_is_expected():
    for paper in papers().values():
        load(paper.experiment)
    known = [cls for cls in _below(Up) if cls.__module__.startswith("coterie.")]
    assert len(known) > 12
    silent = {
        (cls.__name__, field.name)
        for cls in known
        for field in declared(cls)
        if field.expected is None
    }
    assert silent == UNJUDGED


def _below(cls):
    for below in cls.__subclasses__():
        yield below
        yield from _below(below)
