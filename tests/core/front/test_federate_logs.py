"""What steps log is measured: in training by client, of models on validation and test samples."""

import lightning
import pytest
import torch
import torchmetrics
from tests.core.front.lit_modules import CLASSES, SIZES, Conv, Lit, Measured, datasets, samples
from tests.core.front.plain_loop import QUIET
from torch.utils.data import TensorDataset

from coterie.core.errors import UserError
from coterie.core.front.federate import federate
from coterie.core.local_training import stacking
from coterie.core.metrics.monitor import Monitor
from coterie.core.training.trainer import fit


def rounds_of(*arguments, **options):
    """A run, and what each of its rounds noted of clients."""
    made, seen = federate(*arguments, **options), []
    while not made.run.finished:
        made.run.advance()
        seen.append({n: (i.tolist(), v.tolist()) for n, (i, v) in made.run.journal.clients.items()})
    return made, seen


def plain_logs(kind, rounds, epochs, lr):
    """Loss and a measure of every step of clients, by round, in a plain loop."""
    server, found = kind(), []
    for _ in range(rounds):
        total, means = {n: 0.0 for n, _ in server.named_parameters()}, []
        for name, size in SIZES.items():
            local = kind()
            local.load_state_dict(server.state_dict())
            steps, seen = torch.optim.SGD(local.parameters(), lr=lr), []
            x, y = samples(name)
            for _ in range(epochs):
                scores = local(x)
                loss = local.loss(scores, y)
                seen.append((float(loss.detach()), float(scores.detach().abs().mean())))
                steps.zero_grad()
                loss.backward()
                steps.step()
            means.append([sum(one) / epochs for one in zip(*seen, strict=True)])
            for n, value in local.named_parameters():
                total[n] = total[n] + size * value.detach() / sum(SIZES.values())
        with torch.no_grad():
            for n, value in server.named_parameters():
                value.copy_(total[n])
        found.append(means)
    return server, found


@pytest.mark.parametrize("workers", [1, 3])
def test_what_training_steps_log_is_a_mean_over_the_steps_of_each_client(workers):
    made, seen = rounds_of(Measured(), datasets(), rounds=2, epochs=3, workers=workers)
    _, right = plain_logs(Measured, 2, 3, Measured.lr)
    sizes = torch.tensor(list(SIZES.values()), dtype=torch.float64)
    for number in range(2):
        for place, name in enumerate(("train/train_loss", "train/size")):
            own = [one[place] for one in right[number]]
            ids, values = seen[number][name]
            assert ids == [0, 1, 2]
            assert values == pytest.approx(own, rel=1e-5)
            mean = float((torch.tensor(own) * sizes).sum() / sizes.sum())
            assert made.run.history[number][name] == pytest.approx(mean, rel=1e-5)
        assert made.run.history[number]["train/train_loss"] == pytest.approx(
            made.run.history[number]["fed/loss"], rel=1e-5
        )


def test_what_was_logged_before_processes_were_forked_counts_once():
    found = []
    for workers in (1, 3):
        made = federate(Measured(), datasets(), rounds=1, workers=workers)
        made.run.federation.server.logs.add(({"size": {0: (50.0, 2)}}, {}))
        made.run.advance()
        ids, values = made.run.journal.clients["train/size"]
        found.append((ids.tolist(), values.tolist()))
    assert found[0] == found[1]
    assert found[0][1][0] > 10.0  # 50 in two steps, beside those of the round


def test_to_log_the_loss_alone_costs_no_stacking(caplog):
    stacking.say_one_by_one.cache_clear()
    made, seen = rounds_of(Lit(), datasets(), rounds=2)
    assert all(row["train/train_loss"] == row["fed/loss"] for row in made.run.history)
    assert not [name for name in seen[0] if name.startswith("train/")]
    assert not caplog.messages
    rounds_of(Measured(), datasets(), rounds=1)
    assert "logs more than its loss" in " ".join(caplog.messages)


@pytest.mark.parametrize("method", ["scaffold", "pfedme", "fedala", "ditto", "dap-fl", "central"])
def test_every_method_collects_logs(method):
    options = {"lr": 0.05} | ({"inner_steps": 2} if method == "pfedme" else {})
    made, seen = rounds_of(Measured(), datasets(), method, rounds=1, batch_size=4, **options)
    row = made.run.history[0]
    if method not in ("ditto", "dap-fl"):  # two models are trained; clients count alike
        assert row["train/train_loss"] == pytest.approx(row["fed/loss"], rel=1e-4)
    assert row["train/size"] > 0
    assert ("train/size" in seen[0]) == (method != "central")


def test_many_steps_of_one_form_are_logged_all_the_same():
    """No step is run again as a list of operations."""
    made, _ = rounds_of(Measured(), datasets(), rounds=1, epochs=40)
    _, right = plain_logs(Measured, 1, 40, Measured.lr)
    sizes = list(SIZES.values())
    mean = sum(n * one[1] for n, one in zip(sizes, right[0], strict=True)) / sum(sizes)
    assert made.run.history[0]["train/size"] == pytest.approx(mean, rel=1e-4)


class NormedMeasured(Measured):
    build = Conv.build


def test_modules_that_are_trained_alone_log_too():
    made, seen = rounds_of(NormedMeasured(), datasets(), rounds=1, lr=0.05)
    assert made.run.history[0]["train/train_loss"] == pytest.approx(
        made.run.history[0]["fed/loss"], rel=1e-5
    )
    assert seen[0]["train/size"][0] == [0, 1, 2]


def test_validation_and_test_steps_say_what_is_measured():
    valid, test = datasets(count=6, seed=1), datasets(count=3, seed=2)
    server = datasets(seed=3)[1]
    made = federate(Measured(), datasets(), rounds=2, valid=valid, test=test, server_valid=server)
    lightning.Trainer(max_epochs=-1, **QUIET).fit(made)
    row, model = made.run.history[-1], made.server_model()

    def accuracy(model, x, y):
        return float((model(x).argmax(-1) == y).double().mean())

    own = [accuracy(made.client_model(c), *d.tensors) for c, d in enumerate(valid)]
    assert row["eval/personal_val_acc"] == pytest.approx(sum(own) / 3)
    whole = [accuracy(model, *d.tensors) for d in valid]
    assert row["eval/global_val_acc"] == pytest.approx(sum(whole) / 3)
    assert row["eval/server_val_acc"] == pytest.approx(accuracy(model, *server.tensors))
    both = (row["eval/server_val_acc"] + row["eval/personal_val_acc"]) / 2
    assert row["eval/val_acc"] == pytest.approx(both)
    tops = [float(model(d.tensors[0]).detach().max()) for d in test]
    assert row["test/global_top"] == pytest.approx(sum(tops) / 3, rel=1e-5)
    assert not [name for name in row if name.startswith("eval/") and name.endswith("top")]
    assert not [name for name in row if name.startswith("test/") and "val_" in name]
    assert made.run.federation.monitor.key == "eval/val_acc"
    assert not made.run.federation.monitor.lower_is_better


def test_test_samples_are_measured_by_the_validation_step_where_there_is_no_other():
    class Validated(Lit):
        def validation_step(self, batch):
            self.log("size", batch[0].abs().mean())

    made, _ = rounds_of(Validated(), datasets(), rounds=1, test=datasets(seed=1))
    sizes = [float(d.tensors[0].abs().mean()) for d in datasets(seed=1)]
    assert made.run.results["test/global_size"] == pytest.approx(sum(sizes) / 3, rel=1e-5)


def test_batches_weigh_by_their_samples():
    """1,000 samples are a batch: one of 1,000 and one of 10 here."""

    class Sized(Lit):
        def validation_step(self, batch, batch_idx):
            self.log("rows", float(len(batch[0])))

    data = datasets(count=1010, seed=1)
    made, _ = rounds_of(Sized(), datasets(), rounds=1, valid=data, monitor=Monitor("eval/rows"))
    wanted = (1000 * 1000 + 10 * 10) / 1010
    assert made.run.history[0]["eval/global_rows"] == pytest.approx(wanted, rel=1e-6)


def test_what_rounds_are_compared_by_can_be_said():
    options = {"valid": 0.3, "rounds": 1}
    made = federate(Measured(), datasets(), monitor="val_nll", **options)
    assert made.run.federation.monitor.key == "eval/val_nll"
    assert made.run.federation.monitor.lower_is_better
    made = federate(Lit(), datasets(), **options)
    assert made.run.federation.monitor is None
    with pytest.raises(UserError, match=r"monitor='val_nl' is not what.*did you mean 'val_nll'"):
        federate(Measured(), datasets(), monitor="val_nl", **options)


def test_steps_are_measured_in_evaluation_mode():
    class Moody(Lit):
        def validation_step(self, batch, batch_idx):
            self.log("training", float(self.training or self.layers.training))

    said = Monitor("eval/training")
    made, _ = rounds_of(Moody(), datasets(), rounds=1, valid=0.3, monitor=said)
    assert made.run.history[0]["eval/global_training"] == 0.0


def test_a_part_of_each_client_is_held_out():
    made = federate(Lit(), datasets(), valid=0.25, test=0.25, seed=3)
    split = made.run.federation.blocks[0]
    for name, data in (("valid", split.valid), ("test", split.test)):
        assert data.lengths.tolist() == [2, 3, 1], name
    assert split.train.lengths.tolist() == [3, 6, 3]
    for client, one in enumerate(datasets()):
        parts = [
            p.take(torch.tensor([client])).samples["0"]
            for p in (split.train, split.valid, split.test)
        ]
        assert sorted(torch.cat(parts).tolist()) == sorted(one.tensors[0].tolist())
    again = federate(Lit(), datasets(), valid=0.25, test=0.25, seed=3).run.federation.blocks[0]
    assert torch.equal(again.test.samples["0"], split.test.samples["0"])
    other = federate(Lit(), datasets(), valid=0.25, test=0.25, seed=4).run.federation.blocks[0]
    assert not torch.equal(other.test.samples["0"], split.test.samples["0"])


def test_a_client_with_one_sample_keeps_it_to_train_on():
    made = federate(Lit(), datasets(count=1), valid=0.4, test=0.5)
    assert made.run.federation.blocks[0].train.lengths.tolist() == [1, 1, 1]
    assert CLASSES == 4


def test_held_out_data_go_by_the_clients_names():
    clients = dict(zip(SIZES, datasets(), strict=True))
    test = {"eve": datasets(seed=1)[2], "ann": datasets(seed=1)[0]}
    split = federate(Lit(), clients, test=test).run.federation.blocks[0]
    assert split.test.lengths.tolist() == [7, 0, 5]
    fit(federate(Lit(), clients, test=test, rounds=1).run)


class ByObjects(Lit):
    """Logs metric objects, and one that it asks itself."""

    def __init__(self):
        super().__init__()
        self.auroc = torchmetrics.AUROC("multiclass", num_classes=CLASSES)
        self.both = torchmetrics.MetricCollection(
            [
                torchmetrics.Accuracy("multiclass", num_classes=CLASSES, average="macro"),
                torchmetrics.Recall("multiclass", num_classes=CLASSES, average="macro"),
            ],
            prefix="test/",
        )
        self.beside = {"micro": torchmetrics.Accuracy("multiclass", num_classes=CLASSES)}
        self.seen = torchmetrics.MeanMetric()

    def training_step(self, batch, batch_idx):
        value = super().training_step(batch, batch_idx)
        self.seen.update(value.detach())
        self.log("seen", self.seen)
        return value

    def test_step(self, batch, batch_idx):
        scores = self(batch[0]).softmax(-1)
        self.auroc.update(scores, batch[1])
        self.both.update(scores, batch[1])
        self.beside["micro"](scores, batch[1])
        self.log("auroc", self.auroc)
        self.log_dict(self.both)
        self.log("micro", self.beside["micro"].compute())


@pytest.mark.filterwarnings("ignore:.*samples in target")
@pytest.mark.parametrize("workers", [1, 2])
def test_metric_objects_are_of_all_samples_of_a_client(workers):
    """Batches to measure on have 1,000 samples; of the objects nothing is left from them."""
    held = {name: TensorDataset(*samples(name, 1100 + 200 * n)) for n, name in enumerate(SIZES)}
    mine = {name: TensorDataset(*samples(name)) for name in SIZES}
    made = federate(
        ByObjects(), mine, test=held, server_test=held["eve"], rounds=2, workers=workers
    )
    fit(made)
    model, want = made.server_model().eval(), {"auroc": [], "test_MulticlassAccuracy": []}
    fresh = ByObjects()
    for data in held.values():
        with torch.no_grad():
            scores = model(data.tensors[0]).softmax(-1)
        want["auroc"].append(float(fresh.auroc(scores, data.tensors[1])))
        macro = fresh.both(scores, data.tensors[1])["test/MulticlassAccuracy"]
        want["test_MulticlassAccuracy"].append(float(macro))
        micro = float((scores.argmax(-1) == data.tensors[1]).float().mean())
        want.setdefault("micro", []).append(micro)
    results = made.run.results
    for name, values in want.items():
        assert results[f"test/global_{name}"] == pytest.approx(sum(values) / 3, abs=1e-6)
        assert results[f"test/server_{name}"] == pytest.approx(values[-1], abs=1e-6)
    row = made.run.history[-1]
    assert row["train/seen"] == pytest.approx(row["train/train_loss"])
    for part in (model.auroc, model.both["MulticlassRecall"], model.seen):
        assert not part.update_called


def test_metric_objects_that_cannot_be_put_together_say_so():
    def logging(metric, update=True):
        class Logging(Lit):
            def __init__(self):
                super().__init__()
                self.metric = metric

            def test_step(self, batch, batch_idx):
                if update:
                    self.metric.update(self(batch[0])[:, 0], batch[1].float())
                self.log("m", self.metric)

        return Logging()

    data = datasets()
    with pytest.raises(UserError, match=r"PearsonCorrCoef, which holds 'mean_x' and cannot"):
        federate(logging(torchmetrics.PearsonCorrCoef()), data, test=0.3)
    with pytest.raises(UserError, match="MeanSquaredError that the step did not update"):
        federate(logging(torchmetrics.MeanSquaredError(), update=False), data, test=0.3)
    fine = logging(torchmetrics.MeanSquaredError())
    assert federate(fine, data, test=0.3).run.round == 0


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        *[
            ("val/acc", False),
            ("val_rmse", True),
            ("cross_entropy", True),
            ("cancer_recall", False),
        ],
        *[("cancer_recall", False), ("val/WER", True), ("F1", False)],
        *[("val_ce", None), ("mapped", None)],
    ],
)
def test_what_is_better_is_told_by_a_name_or_said(name, lower):
    class Named(Lit):
        def validation_step(self, batch, batch_idx):
            self.log(name, self(batch[0]).mean())

    if lower is not None:
        made = federate(Named(), datasets(), valid=0.3)
        assert made.run.federation.monitor.lower_is_better == lower
        return
    with pytest.raises(UserError, match=rf"by '{name}'.*Monitor\('eval/{name}', lower_is"):
        federate(Named(), datasets(), valid=0.3)
    said = Monitor(f"eval/{name}", lower_is_better=True)
    assert federate(Named(), datasets(), valid=0.3, monitor=said).run.federation.monitor is said
