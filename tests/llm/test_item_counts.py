"""Counts of all organisations together: the sum, what hides the summands, and where it goes."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.llm.organisations import N_ITEMS, cohort_of, organisations, settings
from tests.llm.test_expert import ITEMS, KEY, TITLES, chosen, with_expert

from coterie.core.errors import UserError
from coterie.core.protocol.common_secret import CommonSecret, from_fixed
from coterie.core.run.apart import write_folders
from coterie.core.run.driver import FederatedRun
from coterie.llm.algorithm import PPLR
from coterie.llm.backbone_settings import ExpertSettings, ModelSettings
from coterie.llm.client import Organisation, make_client
from coterie.llm.experiment import Experiment
from coterie.llm.item_counts import CountQuery, ask_counts, counted_bias

NONE = torch.zeros(N_ITEMS, dtype=torch.int64)


def everybody(noise=0.0, popularity=0.2, method="fedavg"):
    how = ExpertSettings(counts="everybody", count_noise=noise, popularity=popularity)
    return settings(method, expert=how, model=ModelSettings(expert="both"))


def organisation(noise=0.0, secret=None):
    return Organisation(everybody(noise), with_expert(), secret=secret or CommonSecret())


def counted(data, period, clients=range(3)):
    """By a loop."""
    found = Counter()
    for client in clients:
        found.update((data.had if period == "train" else data.newer)[client].tolist())
    return [float(found[item]) for item in range(N_ITEMS)]


@pytest.mark.parametrize("period", ["train", "newer"])
def test_the_sum_is_what_a_loop_counts(period):
    data = organisations()
    found = ask_counts(cohort_of(organisation(), data), NONE + 2, period)
    assert found.tolist() == [2.0 + count for count in counted(data, period)]
    assert counted(data, "train") != counted(data, "newer")


def uploads(client, period="train", roster=(0, 1, 2), clients=(0, 1, 2)):
    data, query = organisations(), CountQuery(NONE, torch.tensor(roster), period)
    return [client.count(query, None, data[c], KEY.fold(c))[0].masked for c in clients]


def test_an_upload_shows_nothing_and_masks_are_never_used_twice():
    secret = CommonSecret()
    first = uploads(organisation(secret=secret))
    plain = torch.tensor(counted(organisations(), "train", [0]))
    assert float((from_fixed(first[0], torch.float64) - plain).abs().min()) > 1e6
    assert torch.equal(first[0], uploads(organisation(secret=secret))[0])
    for other in (
        uploads(organisation()),  # of another secret
        uploads(organisation(secret=secret), "newer"),
        uploads(organisation(secret=secret), roster=(0, 1), clients=(0, 1)),
    ):
        apart = from_fixed(other[0] - first[0], torch.float64)
        assert float(apart.abs().min()) > 1e6
    together = from_fixed(torch.stack(first).sum(0), torch.float64)
    assert together.tolist() == counted(organisations(), "train")


@pytest.mark.parametrize("clients", [2, 3])
def test_noise_of_all_adds_up_to_the_settings(clients):
    secret, n_items = CommonSecret(), 20_000
    data = organisations()
    query = CountQuery(torch.zeros(n_items, dtype=torch.int64), torch.arange(clients), "train")
    client = organisation(noise=3.0, secret=secret)
    ups = [client.count(query, None, data[c], KEY.fold(c))[0].masked for c in range(clients)]
    noise = from_fixed(torch.stack(ups).sum(0), torch.float64)[N_ITEMS:]
    assert float(noise.std()) == pytest.approx(3.0, rel=0.03)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.1)


def failing(absent):
    client = organisation()
    whole = type(client).count

    def count(self, down, mine, data, key):
        up, mine = whole(self, down, mine, data, key)
        if data.id in absent:
            up = replace(up, masked=up.masked[:-1])  # refused: of another shape
        return up, mine

    count.step = whole.step
    client.__class__ = type("Failing", (Organisation,), {"count": count})
    return client


def test_who_fails_is_left_out_and_the_others_asked_anew():
    data = organisations()
    found = ask_counts(cohort_of(failing([1]), data), NONE, "train")
    assert found.tolist() == counted(data, "train", [0, 2])


def test_a_sum_of_one_is_never_made():
    with pytest.raises(UserError, match="fewer than two organisations answered"):
        ask_counts(cohort_of(failing([1, 2]), organisations()), NONE, "train")


def test_the_bias_counts_before_the_first_round_and_again_before_the_test():
    chosen, data = everybody(), organisations()
    client = Organisation(chosen, with_expert().double(), secret=CommonSecret())
    bias = counted_bias(chosen, client.adapter, ITEMS)
    server = PPLR(chosen, 3, client.adapter.row(), bias=bias)
    cohort = cohort_of(client, data)
    begun = server.start_block(server.begin(KEY), 0, cohort, KEY)
    public = np.arange(len(TITLES))  # `ITEMS` has these counts
    train, newer = (np.array(counted(data, period)) for period in ("train", "newer"))
    moved = (begun.rows - server.start)[:, bias.place]
    expected = 0.2 * (np.log1p(public + train) - np.log1p(public))
    np.testing.assert_allclose(moved.numpy(), np.tile(expected, (3, 1)), atol=1e-12)
    rest = torch.ones(client.adapter.size, dtype=torch.bool)
    rest[bias.place] = False
    assert torch.equal(begun.rows[:, rest], server.start.expand(3, -1)[:, rest])
    trained = server.round(begun, cohort, KEY)
    ended = server.end_block(trained, cohort, KEY)
    again = 0.2 * (np.log1p(public + train + 5 + newer) - np.log1p(public + train))
    later = (ended.best - trained.best)[:, bias.place]
    np.testing.assert_allclose(later.numpy(), np.tile(again, (3, 1)), atol=1e-12)
    assert ended.best_stage == trained.best_stage
    assert torch.equal(server.served(ended, 1), ended.best[1])


def test_what_came_since_is_not_seen_before_the_test():
    chosen, found = everybody(), []
    for data in (organisations(), replace(organisations(), newer=[torch.arange(5)] * 3)):
        client = Organisation(chosen, with_expert(), secret=CommonSecret())
        bias = counted_bias(chosen, client.adapter, ITEMS)
        server = PPLR(chosen, 3, client.adapter.row(), bias=bias)
        cohort = cohort_of(client, data)
        state = server.start_block(server.begin(KEY), 0, cohort, KEY)
        state = server.round(state, cohort, KEY)
        found.append((state, server.end_block(state, cohort, KEY)))
    (before, ended), (poisoned, ended_otherwise) = found
    assert torch.equal(before.rows, poisoned.rows)
    assert before.chosen == poisoned.chosen
    assert not torch.equal(ended.best, ended_otherwise.best)


def test_settings_that_count_nothing_are_refused(tmp_path):
    for flags, said in (
        (
            ["--model.expert=titles", "--expert.counts=everybody"],
            "no effect with the expert titles",
        ),
        (["--expert.counts=everybody", "--data.clients=1"], "at least two clients"),
        (["--expert.count_noise=1"], "no effect on the counts public"),
    ):
        with pytest.raises(UserError, match=said):
            Experiment(chosen(tmp_path, *flags))


def test_a_run_counts_all_train_items_and_goes_on_after_a_resume(tmp_path):
    more = ["--expert.counts=everybody", "--data.clients=3"]
    whole, later = (FederatedRun(Experiment(chosen(tmp_path, *more)).federation()) for _ in "ab")
    data = Experiment(chosen(tmp_path, *more)).data
    whole.advance()
    client_of = data.client_of
    known = torch.nonzero(client_of != -2).flatten()
    everything = torch.bincount(data.split.train.take(known).values, minlength=data.n_items)
    assert torch.equal(whole.server_state.counts.long(), everything)
    later.load_plain(whole.to_plain())
    for module in (whole, later):
        while not module.finished:
            module.advance()
    since = torch.bincount(data.split.valid.take(known).values, minlength=data.n_items)
    assert torch.equal(whole.server_state.counts.long(), everything + since)
    assert later.results == whole.results
    assert torch.equal(later.server_state.best, whole.server_state.best)
    crossed = {(row["step"], row["field"]): row["bytes"] for row in whole.ledger.rows()}
    assert crossed["count", "masked"] == 2 * 3 * 8 * data.n_items


def test_a_client_apart_has_the_secret_in_its_folder(tmp_path):
    experiment = Experiment(chosen(tmp_path / "run", "--expert.counts=everybody"))
    ids = experiment.data.clients.ids
    whole = experiment.federation()
    paths = write_folders(experiment, whole, tmp_path / "apart", [ids[:1], ids[1:2]])
    first, second = (make_client(experiment.card, path) for path in paths)
    assert first.secret.derive("a") == second.secret.derive("a")
    (paths[0] / "clients.secret").unlink()
    with pytest.raises(UserError, match="must hold the secret that all clients share"):
        make_client(experiment.card, paths[0])


def test_without_it_no_secret_is_drawn_and_nothing_is_asked(tmp_path):
    run = FederatedRun(Experiment(chosen(tmp_path)).federation())
    run.advance()
    assert run.federation.client.secret is None
    assert run.server_state.counts is None
    assert not [row for row in run.ledger.rows() if row["step"] == "count"]
