"""Worlds and teachers: what scenarios share is what they say they share."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from coterie.core.tensors.keys import Key
from coterie.msmt.data.describe import describe
from coterie.msmt.data.drawn import Amounts, Form, Noise
from coterie.msmt.data.make import make_task
from coterie.msmt.data.worlds import (
    Network,
    Teacher,
    World,
    relevant_blocks,
    teacher_laws,
    world_laws,
)
from coterie.msmt.settings import ScenarioData

KEY = Key.from_seed(3)


SMALL = Form((5,) * 6, 8)


def scores_on_the_same_inputs(laws, n=1000):
    ids, numbers = laws[0].inputs.draw(KEY.fold("same"), 0, n)
    return torch.stack([law.labels.logits(ids, numbers) for law in laws])  # (S, n, 2)


def mean_correlation(world, n_worlds=6):
    found = []
    for seed in range(n_worlds):
        logits = scores_on_the_same_inputs(world_laws(world, 2, Key.from_seed(seed)))
        found.append(np.corrcoef(logits[:, :, 0].numpy())[0, 1])
    return np.mean(found)


def test_shift_is_how_far_scenarios_disagree():
    same = scores_on_the_same_inputs(world_laws(World(SMALL, shift=0.0, cov_shift=0.0), 2, KEY))
    # not to the bit: each scenario's scores are scaled by samples of its own
    assert np.corrcoef(same[:, :, 0].numpy())[0, 1] == pytest.approx(1.0, abs=1e-9)
    for shift in (0.3, 0.7, 1.0):
        found = mean_correlation(World(SMALL, shift=shift, cov_shift=0.0))
        assert found == pytest.approx(1 - shift**2, abs=0.17)


def test_scores_are_those_of_the_formulas():
    """Redo the score of one scenario number by number, up to the scale."""
    world = World(form=Form((3, 2), 2), features=4, width=3, noise=Noise(rho=0.0))
    law = world_laws(world, 2, KEY)[1]
    ids, numbers = law.inputs.draw(KEY, 0, 40)

    def normal(key, *shape):
        return key.normal(*shape, dtype=torch.float64).numpy()

    tables = [normal(KEY.fold(f"table {f}"), n, 3) for f, n in enumerate((3, 2))]
    of_numbers = normal(KEY.fold("numbers"), 2, 3)
    w, c = normal(KEY.fold("weights"), 3, 4), normal(KEY.fold("bias"), 4)
    theta = normal(KEY.fold("tastes"), 4, 2)[:, 0]
    delta = normal(KEY.fold("scenario", 1).fold("tastes"), 4, 2)[:, 0]
    score = []
    for row in range(40):
        h = np.zeros(3)
        for f in range(2):
            h += tables[f][int(ids[row, f])] / 2
        for p in range(2):
            h += (float(numbers[row, p]) - 0.28) / 0.32 * of_numbers[p] / 2
        phi = np.tanh(1.5 * h @ w / np.sqrt(3) + c)
        score.append(phi @ (np.sqrt(1 - 0.09) * theta + 0.3 * delta))
    found = law.labels.logits(ids, numbers)[:, 0].numpy()
    assert np.corrcoef(found, score)[0, 1] == pytest.approx(1.0, abs=1e-9)


class Samples:
    """The samples of a task as arrays, one-hot, by scenario."""

    def __init__(self, task, fields=None):
        part = task.clients.train.samples
        columns = slice(None) if fields is None else fields
        self._encoder = OneHotEncoder(handle_unknown="ignore").fit(part["ids"][:, columns])
        self._columns, self.task = columns, task

    def of(self, name, place):
        part = getattr(self.task.clients, name)
        rows = slice(*part.offsets[place : place + 2].tolist())
        ids = self._encoder.transform(part.samples["ids"][rows][:, self._columns]).toarray()
        numbers = part.samples["numbers"][rows].numpy()
        return np.concatenate([ids, numbers], 1), part.samples["labels"][rows, 0].numpy()


def fitted(parts):
    x = np.concatenate([x for x, _ in parts])
    y = np.concatenate([y for _, y in parts])
    return Ridge(alpha=30.0).fit(x, y)


def local_and_pooled(task, fields=None):
    """Mean AUC of clicks of a model for each scenario, and of one for all."""
    samples, places = Samples(task, fields), range(len(task.clients))
    parts = [samples.of("train", place) for place in places]
    everybody, local, pooled = fitted(parts), [], []
    for place in places:
        x, y = samples.of("test", place)
        for model, found in ((fitted(parts[place : place + 1]), local), (everybody, pooled)):
            found.append(roc_auc_score(y, model.predict(x)))
    return np.mean(local), np.mean(pooled)


def test_what_is_best_depends_on_shift():
    alike, different = (
        make_task(ScenarioData(name="world", shift=shift, test_rows=3000), Key.from_seed(0))
        for shift in (0.3, 0.9)
    )
    local, pooled = local_and_pooled(alike)
    assert pooled > local + 0.01
    best = np.array([[row["ctr best AUC"], row["ctcvr best AUC"]] for row in describe(alike)])
    assert best.mean(0) == pytest.approx([0.83, 0.875], abs=0.02)
    assert pooled < best.mean(0)[0]
    local, pooled = local_and_pooled(different)
    assert local > pooled + 0.04


def test_a_teacher_is_the_network_of_its_formulas():
    """Redo Eq. 4 number by number."""
    teacher = Teacher(form=Form((4, 3, 2), 2), relevant=2, width=2, experts=3, units=5)
    relevant = torch.tensor([True, False, False, True])
    network = Network(teacher, relevant, KEY)

    def normal(name, *shape):
        return KEY.fold(name).normal(*shape, dtype=torch.float64).numpy()

    tables = []
    for f, n in enumerate((4, 3, 2)):
        table = normal(f"table {f}", n, 2)
        tables.append((table - table.mean(0)) / table.std(0))
    w_s = np.repeat(np.sqrt(4 / 2) * relevant.numpy(), 2)
    w = normal("experts", 8, 15) / np.sqrt(8)
    b, gates = 0.5 * normal("bias", 15), normal("gate", 8, 3) / np.sqrt(8)
    towers, of_numbers = normal("towers", 5, 2), normal("numbers", 2, 2)
    ids = torch.tensor([[3, 0, 1], [1, 2, 0], [0, 1, 1]])
    numbers = torch.tensor([[0.0, 0.4], [0.9, 0.1], [0.2, 0.2]], dtype=torch.float64)
    for row in range(3):
        x = [tables[f][int(ids[row, f])] for f in range(3)]
        x = np.concatenate([*x, (numbers[row].numpy() - 0.28) @ of_numbers / 0.32 / np.sqrt(2)])
        a = np.exp(x @ (gates * w_s[:, None]))
        mixed = np.zeros(5)
        for n in range(3):
            expert = w[:, 5 * n : 5 * n + 5]
            e = np.array([[expert[i, k] * w_s[i] for k in range(5)] for i in range(8)])
            mixed += a[n] / a.sum() * np.maximum(x @ e + b[5 * n : 5 * n + 5], 0)
        found = network(ids[row : row + 1], numbers[row : row + 1])[0]
        assert np.allclose(found, mixed @ towers, rtol=1e-12)


def test_scenarios_of_a_teacher_share_what_is_relevant_and_nothing_else():
    teacher = Teacher()
    shared = KEY
    laws = teacher_laws(teacher, 4, shared)
    blocks = [relevant_blocks(teacher, shared, shared.fold("scenario", j)) for j in range(4)]
    assert all(torch.equal(blocks[0], other) for other in blocks)
    assert int(blocks[0].sum()) == teacher.relevant
    ids, numbers = laws[0].inputs.draw(KEY, 0, 500)
    for law in laws:
        before = law.labels.logits(ids, numbers)
        for block in range(teacher.blocks):
            changed, other = ids.clone(), numbers.clone()
            if block < 16:
                changed[:, block] = (changed[:, block] + 1) % 20
            else:
                other = (other + 0.5) % 1.0
            moved = bool((law.labels.logits(changed, other) != before).any())
            assert moved == bool(blocks[0][block])
    logits = scores_on_the_same_inputs(laws)[:, :, 0].numpy()
    assert np.abs(np.corrcoef(logits) - np.eye(4)).max() < 0.5


def test_with_shift_scenarios_disagree_about_what_is_relevant():
    def agreement(shift):
        teacher, same = Teacher(shift=shift, relevant=4), []
        for seed in range(20):
            key = Key.from_seed(seed)
            a, b = (relevant_blocks(teacher, key, key.fold("scenario", j)) for j in range(2))
            same.append(float((a & b).sum()) / 4)
        return np.mean(same)

    none, little, much = agreement(0.0), agreement(0.3), agreement(1.0)
    assert none == 1.0
    assert 0.6 < little < 1.0
    assert much == pytest.approx(4 / 17, abs=0.12)


def test_the_template_is_worth_a_lot_and_whole_models_nothing():
    settings = ScenarioData(name="teacher", rows=(500,) * 4, test_rows=2000)
    key = Key.from_seed(1)
    task = make_task(settings, key)
    law = key.fold("law")
    relevant = relevant_blocks(Teacher(), law, law.fold("scenario", 0))[:16].nonzero().flatten()
    local, pooled = local_and_pooled(task)
    told, _ = local_and_pooled(task, relevant.tolist())
    assert told > local + 0.04
    assert local > pooled + 0.08


def test_generated_sets_by_name():
    sample = make_task(ScenarioData(), KEY)
    assert (sample.name, sample.schema.n_scenarios, sample.notes) == ("sample", 4, ())
    assert sample.clients.lengths.tolist() == [500, 1000, 2000, 4000]
    world = make_task(ScenarioData(name="world", rows=(30, 20), valid_rows=10, test_rows=15), KEY)
    assert world.clients.lengths.tolist() == [30, 20]
    assert world.clients.valid.lengths.tolist() == [10, 10]
    assert world.clients.test.lengths.tolist() == [15, 15]
    teacher = make_task(ScenarioData(name="teacher", rows=(30,), test_rows=15), KEY)
    assert teacher.clients.test.lengths.tolist() == [15]
    alike = make_task(ScenarioData(name="world", rows=(9,), test_rows=7, paper_protocol=True), KEY)
    held = alike.clients
    assert torch.equal(held.valid.samples["numbers"], held.test.samples["numbers"])


@pytest.mark.parametrize("name", ["world", "teacher"])
def test_every_setting_of_a_generated_set_has_an_effect(name):
    base = {"name": name, "rows": (200,), "valid_rows": 5, "test_rows": 300}
    changes = [{"rho": -0.9}, {"snr": 0.2}, {"shift": 0.8}]
    changes += [{"cov_shift": 0.9}] if name == "world" else []
    before = make_task(ScenarioData(**base), KEY)
    for change in changes:
        after = make_task(ScenarioData(**base, **change), KEY)
        assert not torch.equal(after.truth, before.truth)


def test_amounts_do_not_change_the_law():
    task = make_task(ScenarioData(name="world", rows=(200,), test_rows=20), KEY)
    longer = make_task(ScenarioData(name="world", rows=(100, 50), test_rows=40), KEY)
    torch.testing.assert_close(task.truth, longer.truth[:20])
    assert Amounts((1,), None, 2).valid is None
