"""A run overheard: what the server gets and knows, and what it makes of it."""

import pickle
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.msmt.one_upload import losses
from tests.msmt.small_scenarios import LENGTHS, QUIET, scenarios, settings

from coterie.core.federation.exchange import Answers, Exchange, Request
from coterie.core.methods.fedamp import UPDATE, CloudModel
from coterie.core.methods.kit.model_messages import GlobalModel, ModelUpdate
from coterie.core.privacy.accountant import epsilon
from coterie.core.protocol.messages import Aligned, Private
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import build
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.msmt.attack.known import Ear, Seen, knowledge_of
from coterie.msmt.attack.reader import MemberReader, candidates
from coterie.msmt.attack.report import attack, play, protected
from coterie.msmt.experiment import Experiment
from coterie.msmt.messages import AFFINE
from coterie.msmt.models import base
from coterie.msmt.settings import Settings

pytestmark = pytest.mark.long

KEY = Key.from_seed(3)
NOISE = PrivacySettings(clip=0.5, noise="gaussian", scale=0.01)
ALL = ("embeddings", "experts", "gates")
METHODS = {
    "pf": {},
    "factored, own, literal": {
        **{"pf.upload": "factored", "pf.centre": "own"},
        "reading": "literal",
    },
    "leaf, all shared": {"pf.generator": "leaf", "pf.share": ALL},
    "fedavg": {"method": "fedavg"},
    "ditto": {"method": "ditto", "train.share": ("inputs.*",)},
    "fedamp": {"method": "fedamp"},
}
EVALUATED = {"train.evaluate_every": 1}
TWO = (11, 9)
"""Lengths where a third scenario would say nothing new."""
each_method = pytest.mark.parametrize("name", METHODS)


def experiment(changes=None, privacy=None, lengths=LENGTHS, **more):
    found = Experiment(settings(QUIET, changes or {}, **more))
    if privacy is not None:
        found = Experiment(replace(found.settings, privacy=privacy))
    found.task = scenarios(lengths)
    return found


def listening(chosen):
    """A run before its first round, the ear in it, and what the server knows."""
    run = FederatedRun(chosen.federation())
    ear = Ear(run.exchange)
    run.exchange = ear
    return run, ear, knowledge_of(run.federation.server, run.server_state)


def seen_in(ear, known):
    found = [seen for one in ear.emptied() if (seen := known.hear(one)) is not None]
    return sorted(found, key=lambda seen: seen.scenario)


@each_method
def test_an_ear_changes_nothing_and_hears_messages_only(name):
    chosen = experiment(METHODS[name], NOISE, TWO)
    plain, (run, ear, _) = FederatedRun(chosen.federation()), listening(chosen)
    for _ in range(2):
        plain.advance()
        run.advance()
    assert len(ear.heard) >= 2 * 2
    for part in ("server", "store"):
        pairs = zip(
            tree.tensors(plain.to_plain()[part]), tree.tensors(run.to_plain()[part]), strict=True
        )
        assert all(torch.equal(one, other) for (_, one), (_, other) in pairs)
    assert plain.ledger.rows() == run.ledger.rows()
    steps = run.federation.client.steps()
    for one in ear.heard:
        declared = steps[one.step]
        assert type(one.down) is (declared.down or type(None))
        assert type(one.up) is (declared.up or type(None))
        for message in (one.down, one.up):
            assert not list(private_in(message))
    assert {one.scenario for one in ear.heard} == {0, 1}


@pytest.mark.parametrize("name", ["pf", "fedavg"])
def test_an_ear_hears_each_upload_of_forked_processes(name):
    """Which sum those of a chunk before they send them, where nobody listens."""
    heard = []
    for workers in (1, 2):
        run, ear, _ = listening(experiment(METHODS[name], engine__workers=workers))
        run.advance()
        heard.append(ear.heard)
        run.exchange.rest()
    assert heard[0]
    for one, other in zip(*heard, strict=True):
        assert (one.step, one.scenario) == (other.step, other.scenario)
        pairs = zip(
            tree.tensors((one.down, one.up)), tree.tensors((other.down, other.up)), strict=True
        )
        assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)
    assert any(one.up is not None for one in heard[1])


def private_in(value):
    if isinstance(value, Private):
        yield value
    if isinstance(value, dict):
        for below in value.values():
            yield from private_in(below)
    if is_dataclass(value):
        for field in fields(value):
            yield from private_in(getattr(value, field.name))


class Stacked(Exchange):
    """Answers of two scenarios in one part, the later one first."""

    def present(self, block):
        return torch.arange(3)

    def enrol(self, ids, block):
        return ids

    def ask(self, request):
        up = ModelUpdate({"w": torch.tensor([[2.0], [0.0]])}, torch.tensor([2, 0]), torch.zeros(2))
        yield Answers(torch.tensor([2, 0]), up, {1: "its answer was none"})

    def to_plain(self):
        return {"kept": 1}

    def load_plain(self, plain):
        self.loaded = plain


def test_scenarios_that_answer_together_are_heard_one_by_one():
    ear = Ear(Stacked())
    step, everybody = UPDATE, torch.arange(3)
    cloud = CloudModel({"w": 10.0 * torch.arange(3)[:, None]}, torch.tensor([0.5, 0.6, 0.7]))
    for down in (Aligned(everybody, cloud), GlobalModel({"w": torch.ones(1)})):
        (answers,) = ear.ask(Request(step, down, everybody, (0, 1)))
        assert answers.ids.tolist() == [2, 0]
    assert [one.scenario for one in ear.heard] == [2, 0, 2, 0]
    for one in ear.heard:
        assert one.up.change["w"].tolist() == [one.scenario]
        assert int(one.up.samples) == one.scenario
    own, common = ear.heard[:2], ear.heard[2:]
    assert [one.down.weights["w"].tolist() for one in own] == [[20.0], [0.0]]
    assert [float(one.down.pull) for one in own] == pytest.approx([0.7, 0.5])
    assert [one.down.weights["w"].tolist() for one in common] == [[1.0], [1.0]]
    assert ear.emptied()[0] is own[0]
    assert ear.heard == []
    ear.load_plain(ear.to_plain())
    assert ear.inner.loaded == {"kept": 1}
    assert torch.equal(ear.present(0), everybody)
    assert torch.equal(ear.enrol(everybody, 0), everybody)


@pytest.mark.parametrize("privacy", [PrivacySettings(), NOISE], ids=["plain", "noise"])
def test_what_is_heard_is_what_the_server_averages(privacy):
    run, ear, _ = listening(experiment({"method": "fedavg"}, privacy))
    for _ in range(2):
        before = run.server_state.weights
        run.advance()
        ups = [one.up for one in ear.emptied() if one.step == "update"]
        counts = [int(up.samples) for up in ups]
        assert sorted(counts) == [5, 9, 11]
        for name, weight in run.server_state.weights.items():
            changes = [up.change[name] * n for up, n in zip(ups, counts, strict=True)]
            torch.testing.assert_close(weight, before[name] + sum(changes) / sum(counts))


def test_uploads_are_heard_as_they_leave():
    heard = {}
    for name, privacy in {"plain": None, "clip": replace(NOISE, noise="none", scale=0.0)}.items():
        run, ear, _ = listening(experiment({"method": "fedavg"}, privacy))
        run.advance()
        heard[name] = [one for one in ear.heard if one.step == "update"]
    run, ear, _ = listening(experiment({"method": "fedavg"}, NOISE))
    run.advance()
    for plain, clipped, noisy in zip(
        heard["plain"],
        heard["clip"],
        (one for one in ear.heard if one.step == "update"),
        strict=True,
    ):
        flat = torch.cat([value.flatten() for value in plain.up.change.values()])
        assert plain.norm() == pytest.approx(float(flat.norm()))
        assert plain.norm() > 0.6
        assert clipped.norm() == pytest.approx(0.5)
        apart = [noisy.up.change[name] - clipped.up.change[name] for name in clipped.up.change]
        noise = torch.cat([value.flatten() for value in apart])
        assert float(noise.std()) == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(("upload", "share"), [("full", ("embeddings",)), ("factored", ())])
def test_what_is_known_of_the_scenarios_is_the_servers_reference(upload, share):
    run, ear, known = listening(experiment({"pf.upload": upload, "pf.share": share}))
    for _ in range(3):
        reference = run.server_state.reference
        run.advance()
        found = seen_in(ear, known)
        assert [seen.scenario for seen in found] == [0, 1, 2]
        module = run.federation.server.module
        for seen in found:
            load(module, seen.before)
            whole = reference.get("scenario")
            if whole is None:
                whole = 1 + (
                    reference["scenario.rows"][..., None]
                    + reference["scenario.columns"][:, None, :]
                )
            torch.testing.assert_close(module.scenario_weight(), whole)
            for name in reference:
                if name.startswith("towers."):
                    torch.testing.assert_close(seen.before[name], reference[name])
            local = {"weight", "psi", "psi_tower", "gates.weight", "rest.0.weight"}
            if not share:
                local |= {name for name in known.first if name.startswith("inputs.")}
            for name in local & set(known.first):
                assert torch.equal(seen.before[name], known.first[name]), name
                assert torch.equal(seen.after[name], known.first[name]), name
            assert seen.samples == [11, 9, 5][seen.scenario]


def load(module, values):
    module.load_state_dict({**module.state_dict(), **values})


@pytest.mark.parametrize("generator", ["factored", "leaf"])
def test_where_all_is_shared_and_no_psi_learned_the_server_knows_all_networks(generator):
    chosen = experiment({"pf.share": ALL, "pf.psi": False, "pf.generator": generator})
    run, ear, known = listening(chosen)
    module, mine = run.federation.server.module, None
    for _ in range(3):
        if mine is not None:
            mine = kept_by(ear, run)
        run.advance()
        for seen in seen_in(ear, known):
            if mine is None:
                continue
            one = tree.take(mine, torch.tensor([seen.scenario]))
            client = run.federation.client
            real = {**one.personal, **client.buffers(one)}
            for name in AFFINE.values():
                torch.testing.assert_close(seen.before[name], one.personal[name][0])
            load(module, seen.before)
            weight, batch = module.scenario_weight(), rows_of(chosen, seen.scenario)
            logits = module.eval().logits(batch)
            load(module, {name: value[0] for name, value in real.items()})
            torch.testing.assert_close(weight, module.scenario_weight())
            torch.testing.assert_close(logits, module.eval().logits(batch))
        mine = kept_by(ear, run)


def kept_by(ear, run):
    """What scenarios keep; only a test may look."""
    return ear.inner.store.take(torch.arange(3))


def rows_of(chosen, scenario):
    data = chosen.task.clients.test.take(torch.tensor([scenario]))
    return data.samples


def test_candidates_are_training_rows_and_as_many_test_rows():
    task = scenarios((30, 7, 1))
    found = candidates(task, 12, KEY)
    assert list(found) == [0, 1]  # one training row is none to ask about
    again, other = candidates(task, 12, KEY), candidates(task, 12, KEY.fold("else"))
    for number, count in ((0, 12), (1, 7)):
        one = found[number]
        assert one.is_member.tolist() == [True] * count + [False] * count
        for part, is_member in ((task.clients.train, True), (task.clients.test, False)):
            held = part.take(torch.tensor([number])).samples
            real = {tuple(row.tolist()) for row in held["numbers"]}
            drawn = [tuple(row.tolist()) for row in one.rows["numbers"][one.is_member == is_member]]
            assert len(set(drawn)) == count
            assert set(drawn) <= real
        ids = task.clients.train.take(torch.tensor([number])).samples["ids"]
        for field, occurs in enumerate(one.occurs):
            assert occurs.nonzero().flatten().tolist() == sorted(set(ids[:, field].tolist()))
        assert torch.equal(one.rows["numbers"], again[number].rows["numbers"])
    assert not torch.equal(found[0].rows["numbers"], other[0].rows["numbers"])


def test_losses_of_several_uploads_add_up_and_others_explain_falls():
    chosen = experiment()
    asked = candidates(chosen.task, 11, KEY)[0]
    run = FederatedRun(chosen.federation())
    network, first = run.federation.server.module, run.server_state.weights

    def shifted(number, scale=0.3):
        key = KEY.fold("shift", number)
        return {
            name: value + scale * key.fold(name).normal(*value.shape, dtype=value.dtype)
            for name, value in first.items()
        }

    reader = MemberReader(network, first, asked, KEY)
    rounds = [
        [Seen(j, shifted(9 * r + j), shifted(9 * r + j + 4), {}, 5) for j in range(3)]
        for r in (0, 1)
    ]
    total = np.zeros((3, 22))
    for seen, *others in rounds:
        reader.read(seen, others)
        pairs = [
            (
                losses(network, each.before, asked.rows, KEY),
                losses(network, each.after, asked.rows, KEY),
            )
            for each in (seen, *others)
        ]
        falls = [(before - after).numpy() for before, after in pairs]
        known = np.stack([np.ones(22), *falls[1:]], 1)
        fitted = known @ np.linalg.lstsq(known, falls[0], rcond=None)[0]
        total += np.stack([falls[0], -pairs[0][1].numpy(), falls[0] - fitted])
    found, truth = reader.found(), asked.is_member.numpy()
    told = [found.by_fall.auc, found.by_fall.auc_loss, found.beyond]
    assert told == pytest.approx([roc_auc_score(truth, scores) for scores in total])
    start = losses(network, first, asked.rows, KEY)
    assert found.control == pytest.approx(roc_auc_score(truth, -start))
    assert found.count == 11


@pytest.mark.parametrize("name", ["pf", "fedavg"])
def test_a_reading_needs_messages_and_the_first_network_alone(name):
    chosen = experiment(METHODS[name], NOISE, TWO)
    asked = candidates(chosen.task, 9, KEY)
    (reading,) = play(protected(chosen, NOISE), [2], asked, KEY).readings
    run, ear, known = listening(chosen)
    first, module = known.first, run.federation.server.module
    rounds = []
    for _ in range(2):
        run.advance()
        rounds.append(pickle.dumps(ear.emptied()))
    empty = knowledge_of(run.federation.server, replace(run.server_state, weights=first))
    del run, ear, known  # nothing is left but what crossed
    readers = {number: MemberReader(module, first, each, KEY) for number, each in asked.items()}
    for told in rounds:
        seen = [each for one in pickle.loads(told) if (each := empty.hear(one)) is not None]
        seen.sort(key=lambda each: each.scenario)
        for one in seen:
            others = [each for each in seen if each.scenario != one.scenario]
            readers[one.scenario].read(one, others)
    assert {number: each.found() for number, each in readers.items()} == reading.members


@pytest.mark.parametrize(("name", "last"), [("pf", 2), ("fedavg", 3), ("ditto", 2)])
def test_a_play_is_the_run_and_tells_its_test_auc_and_epsilon(name, last):
    chosen = experiment(METHODS[name], NOISE, TWO)
    asked = {1: candidates(chosen.task, 9, KEY)[1]}  # that they are asked makes no difference
    readings = play(protected(chosen, NOISE), [1, last], asked, KEY).readings
    run = FederatedRun(experiment(METHODS[name] | EVALUATED, NOISE, TWO).federation())
    who = "global" if name == "fedavg" else "personal"
    for number, reading in ((1, readings[0]), (last, readings[1])):
        while run.round < number:
            run.advance()
        assert reading.rounds == number
        assert reading.test_auc == run.journal.scalars[f"test/{who}_auc"]
        assert reading.epsilon == epsilon(NOISE, number)


OVERFITTED = {
    "data.name": "world",
    "data.rows": (40, 40),
    "data.valid_rows": 20,
    "data.test_rows": 40,
    "rounds": 2,
    "train.epochs": 6,
    "train.batch_size": 40,
    "train.lr": 0.02,
    "model.dropout": 0.0,
    "model.embedding": 4,
    "model.experts": 2,
    "model.expert_layers": (24,),
    "model.tower_layers": (8,),
}


def attacked(**more):
    chosen = Experiment(build(Settings, OVERFITTED | more))
    rows = attack(chosen, [1, 2], [0.5], None, 40)
    assert [row["protection"].endswith(" *") for row in rows] == [True, True, False, False]
    return {(row["scale"] > 0, row["rounds"]): row for row in rows}


@pytest.fixture(scope="module")
def overfitted():
    return {"fedavg": attacked(method="fedavg"), "pf": attacked()}


def test_the_whole_model_tells_members_and_noise_hides_them(overfitted):
    rows = overfitted["fedavg"]
    assert rows[False, 1]["auc"] > 0.75
    assert rows[False, 2]["auc"] > 0.65
    assert rows[False, 2]["auc_loss"] > 0.8
    for rounds in (1, 2):
        assert abs(rows[True, rounds]["auc"] - 0.5) < 0.12
        assert rows[True, rounds]["auc"] < rows[False, rounds]["auc"] - 0.1
    assert rows[False, 1]["category_auc"] == rows[False, 1]["category_recall"] == 1.0
    assert rows[False, 2]["category_precision"] == 1.0
    assert rows[True, 2]["category_auc"] < 0.8


def test_the_parts_that_pf_msmtrec_shares_tell_less(overfitted):
    rows = overfitted["pf"]
    assert "category_auc" not in rows[False, 1]
    for rounds in (1, 2):
        assert 0.5 < rows[False, rounds]["auc"] < overfitted["fedavg"][False, rounds]["auc"] - 0.05
        assert abs(rows[True, rounds]["auc"] - 0.5) < 0.12


def test_an_attack_is_repeatable():
    def found():
        return attack(experiment({"method": "fedavg"}, lengths=TWO), [1], [0.1], None, 9)

    first, again = found(), found()
    assert repr(first) == repr(again)
    assert len({row["auc"] for row in first}) == len(first) == 2


SHARING = {
    "fedavg": {"method": "fedavg"},
    "fedprox": {"method": "fedprox", "fedprox.mu": 0.5},
    "fedamp": {"method": "fedamp"},
    "ditto": {"method": "ditto", "train.keep_moments": False},
    "pf": {"pf.share": ("embeddings",)},
    "single-task": {"method": "fedavg", "model.name": "single-task", "train.optimizer": "sgd"},
}


@pytest.mark.parametrize(
    ("name", "is_large"),
    [
        *((name, False) for name in ("fedavg", "ditto", "pf")),
        *((name, True) for name in SHARING if name not in ("fedavg", "ditto")),
    ],
)
def test_shared_embeddings_tell_all_categories(monkeypatch, name, is_large):
    if is_large:
        monkeypatch.setattr(base, "SPARSE_FROM", 5)  # those of 4 or fewer are never looked up
    few = {
        "train.epochs": 2,
        "train.batch_size": 20,
        "data.rows": (20, 15),
        "data.test_rows": 2,
        "model.experts": 1,
    }
    chosen = Experiment(build(Settings, OVERFITTED | few | SHARING[name]))
    asked = candidates(chosen.task, 2, KEY)
    for reading in play(protected(chosen, PrivacySettings()), [1, 2], asked, KEY).readings:
        for found in reading.categories.values():
            assert 0.2 < found.chance < 0.9
            assert (found.auc, found.precision, found.recall) == (1.0, 1.0, 1.0)
        assert len(reading.categories) == 2
