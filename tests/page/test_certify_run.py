"""The certificate of a run of PAGE, in every reading, and the command that makes it."""

import json
from dataclasses import replace

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.keys import Key
from coterie.page.certificate.federation import FederationGame
from coterie.page.certificate.game import LEARNED, Deviation
from coterie.page.certificate.of_run import before_learning, certify_run
from coterie.page.experiment import Experiment
from coterie.page.readings import resolve
from coterie.page.settings import (
    AgentOptions,
    CertificateSettings,
    GameSettings,
    Settings,
    TaskSettings,
    TrainSettings,
)

N = 3
QUICK = CertificateSettings(
    grid=2, horizon=2, screen_seeds=1, shortlist=1, seeds=2, off_path=1, batch=4
)


def played(reading="recommended", rounds=2, lr=0.1, start=None, **game) -> FederatedRun:
    settings = Settings(
        reading=reading,
        rounds=rounds,
        data=TaskSettings(clients=N),
        train=TrainSettings(epochs=2, batch_size=75, lr=lr),
        game=GameSettings(**game),
        client_agent=AgentOptions(start=start),
    )
    module = FederatedRun(Experiment(settings).federation())
    while not module.finished:
        module.advance()
    return module


@pytest.mark.parametrize("reading", ["recommended", "literal", "released"])
def test_every_reading_can_be_tested(reading):
    found = certify_run(played(reading), QUICK, progress=False)
    assert len(found.leaders) == N
    assert all(one.gain.known for one in found.leaders)
    assert found.follower.gain.known
    for one in found.leaders:
        assert list(one.learned) == ["lr", "epochs"]
        assert 1e-3 <= one.learned["lr"] <= 0.1 + 1e-6
        assert one.action["epochs"] in (1, 2)
    assert found.to_dict()["epsilon"] == found.epsilon


def test_a_learned_stage_is_the_one_that_the_run_plays_next():
    """Without exploring, the run's next stage from the same keys: W(t+1) by the same p."""
    game = FederationGame(played())
    key = Key.from_seed(4)
    answer = game.answer(LEARNED, key)
    assert float(answer.learned.sum()) == pytest.approx(1)
    alone = game.payoffs([LEARNED], 1, 0.9, key)[0]
    assert float(alone[-1]) == pytest.approx(answer.learned_utility, rel=1e-6)
    own = game.stage_payoffs(game.learned_actions(), key)
    torch.testing.assert_close(alone[:N], own.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("follower", ["best-response", "ddpg"])
@pytest.mark.parametrize("ratio", ["10:1", "0:1"])
def test_payoffs_of_a_stage_are_what_leaders_are_paid(ratio, follower):
    game = FederationGame(played(reward_ratio=ratio, follower=follower))
    key, actions = Key.from_seed(5), torch.tensor([[-1.0, 1.0], [1.0, -1.0], [0.0, 0.0]])
    found = game.stage_payoffs(actions, key)
    deviations = [Deviation(n, action) for n, action in enumerate(actions)]
    alone = game.payoffs(deviations, 1, 1.0, key).diagonal()
    torch.testing.assert_close(found.double(), alone, rtol=1e-6, atol=1e-6)
    own = FederationGame(played(follower=follower)).stage_payoffs(actions, key)
    assert torch.allclose(own, found.to(own.dtype)) == (ratio == "0:1")


@pytest.mark.parametrize("order", ["before", "after"])
def test_only_a_server_that_chooses_last_sees_a_deviation(order):
    game = FederationGame(played("literal", order=order, rounds=3))
    key = Key.from_seed(2)
    learned = game.answer(LEARNED, key).learned
    deviations = [Deviation(n, torch.full((2,), a)) for n in range(N) for a in (-1.0, 1.0)]
    same = [torch.equal(game.answer(one, key).learned, learned) for one in deviations]
    assert all(same) if order == "before" else not all(same)


def test_payoffs_do_not_depend_on_how_many_clients_are_stacked():
    module, key, found = played(), Key.from_seed(4), []
    tried = [LEARNED, Deviation(1, torch.tensor([0.5, -0.5])), Deviation(2, torch.zeros(2))]
    for chunk in (None, 2, 1):
        module.federation = replace(module.federation, chunk=chunk)
        game = FederationGame(module)
        found.append(game.payoffs(tried, 2, 0.9, key))
    assert (found[0][1] - found[0][0]).abs().max() > 1e-3
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-6, rtol=1e-6)


def test_without_a_choice_the_follower_has_no_gap():
    found = certify_run(played(tune_p=False), QUICK, progress=False)
    assert found.follower.gain.mean == pytest.approx(0, abs=1e-9)
    assert found.follower.stage.regret == 0


SMALL = ["--rounds=2", "--data.clients=2", "--train.epochs=2", "--train.batch_size=75"]
OVERFLOW = 1e38  # as a learning rate


def diverging(reading="recommended", **game) -> FederatedRun:
    """Learned actions are sound, but the largest learning rate breaks any training."""
    start = -0.95 if reading == "recommended" else None
    return played(reading, rounds=1, lr=OVERFLOW, start=start, **game)


@pytest.mark.parametrize("follower", ["best-response", "ddpg"])
def test_a_leader_that_diverges_gets_nothing_and_weighs_nothing(follower):
    game, key, broken = FederationGame(diverging(follower=follower)), Key.from_seed(3), 1
    after, others = Deviation(broken, torch.ones(2)), [0, 2]
    alone, learned = game.payoffs([after, LEARNED], 1, 0.9, key)
    assert alone[broken] == 0 < learned[broken]
    assert alone[others].tolist() == learned[others].tolist()
    answer = game.answer(after, key)
    for p in (answer.learned, answer.best, *answer.others):
        assert p[broken] == 0
        assert float(p.sum()) == pytest.approx(1)
    assert answer.learned_utility == pytest.approx(float(alone[-1]), rel=1e-6)
    assert answer.learned_utility <= answer.best_utility * (1 + 1e-6)  # of losses in float32
    assert answer.best_utility <= answer.ceiling * (1 + 1e-6)
    later = game.payoffs([after, LEARNED], 3, 0.9, key)
    assert later.isfinite().all()
    assert later[0, broken] < later[1, broken]


def first_stage(reading, **changes) -> tuple[FederatedRun, FederatedRun]:
    """A run before its first round and after it, where neither exploring nor samples are drawn."""
    still = AgentOptions(noise_sigma=0.0, warm_up=0)
    settings = Settings(
        reading=reading,
        rounds=1,
        data=TaskSettings(clients=N),
        train=TrainSettings(epochs=2, batch_size=10_000),
        client_agent=still,
        server_agent=still,
    )
    experiment = Experiment(replace(settings, **changes))
    before, after = (FederatedRun(experiment.federation()) for _ in range(2))
    after.advance()
    return before, after


@pytest.mark.parametrize("ratio", [None, "2:1"])
@pytest.mark.parametrize("reading", ["recommended", "literal", "released"])
def test_the_stage_before_learning_is_the_first_round_of_the_run(reading, ratio):
    before, after = first_stage(reading, game=GameSettings(reward_ratio=ratio))
    game = FederationGame(before)
    payoffs = game.payoffs([LEARNED], 1, 1.0, Key.from_seed(9))[0]
    ids, utilities = after.journal.clients["page/reward_clients"]
    u_server = after.journal.scalars["page/reward_server"]
    assert ids.tolist() == list(range(N))
    leaders, follower = utilities.double(), u_server
    if ratio and reading == "released":
        follower = 2 * u_server
    elif ratio:
        leaders = (2 * u_server + leaders) / 3
        follower = (2 * u_server + float(utilities.mean())) / 3
    torch.testing.assert_close(payoffs[:N], leaders, rtol=1e-5, atol=0)
    assert float(payoffs[-1]) == pytest.approx(follower, rel=1e-5)
    _, lr = after.journal.clients["page/lr"]
    told = [game.described(action)["lr"] for action in game.learned_actions()]
    assert told == pytest.approx(lr.tolist(), rel=1e-6)


def test_a_certificate_before_the_first_round_leaves_the_run_as_it_is():
    train, one = TrainSettings(epochs=1, batch_size=75), replace(QUICK, leaders=1)
    settings = Settings(rounds=2, data=TaskSettings(clients=N), train=train)
    plain, looked_at = (FederatedRun(Experiment(settings).federation()) for _ in range(2))
    first = certify_run(looked_at, one, progress=False)
    for module in (plain, looked_at):
        while not module.finished:
            module.advance()
    assert plain.history == looked_at.history
    assert plain.ledger.rows() == looked_at.ledger.rows()
    assert certify_run(before_learning(plain), one, progress=False) == first


@pytest.mark.parametrize("reading", ["recommended", "literal"])  # released reads actions as literal
def test_candidates_that_diverge_are_not_chosen(reading):
    found = certify_run(diverging(reading), replace(QUICK, shortlist=0), progress=False)
    assert all(one.gain.known for one in found.leaders)
    if reading == "recommended":  # in the others the learned play diverges as well
        assert found.follower.gain.known
        assert all(one.action["lr"] == pytest.approx(1e-3) for one in found.leaders)


@pytest.mark.parametrize("reading", ["recommended", "literal"])
def test_where_everybody_diverges_the_model_stays(reading):
    game = FederationGame(played(reading, lr=OVERFLOW, tune_lr=False))
    payoffs = game.payoffs([LEARNED], 2, 1.0, Key.from_seed(3))[0]
    assert payoffs[:N].tolist() == [0] * N
    answer = game.answer(LEARNED, Key.from_seed(3))
    assert answer.learned.tolist() == [0] * N
    if reading == "literal":  # of the clients' losses, and there are none
        assert payoffs[-1].isnan()
    else:
        held = {name: value[None] for name, value in game.state.weights.items()}
        loss = game.server.evaluator.of_models(held, game.server.samples.valid).loss
        assert float(payoffs[-1]) == pytest.approx(2 / (float(loss) + 0.1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": "fedavg"}, "only a game"),
        ({"train": TrainSettings(participation=0.5)}, "participation"),
        ({"game": GameSettings(tune_lr=False, tune_epochs=False)}, "leaders that choose"),
        ({"game": GameSettings(lr_min=0.1, tune_epochs=False)}, "game.lr_min below train.lr"),
        ({"game": GameSettings(lr_min=0.1, epochs_min=20)}, "game.epochs_min below train.epochs"),
    ],
)
def test_what_cannot_be_certified_is_refused_before_the_first_round(change, says):
    with pytest.raises(UserError, match=says):
        resolve(replace(Settings(certify=True), **change))


@pytest.mark.parametrize(
    "game",
    [
        GameSettings(order="before"),
        GameSettings(server_utility="mixture"),
        GameSettings(actions="clipped", epochs_min=2),
    ],
)
def test_choices_that_contradict_each_other_are_refused(game):
    with pytest.raises(UserError, match="'game"):
        resolve(Settings(game=game))


def test_the_command_uses_the_settings_of_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quick = ["grid=2", "horizon=1", "shortlist=1", "leaders=1"]
    words = ["train", "page", *SMALL, *(f"--certificate.{one}" for one in quick)]
    assert main([*words, "--logger.wandb=off", "--run.progress=false"]) == 0
    (run,) = (tmp_path / "runs" / "page").glob("synthetic*")
    code = status("page", "certify", "--run", str(run), "--seeds", "6", "--off_path", "0")
    found = json.loads((run / "certificate.json").read_text())
    assert code == (0 if found["holds"] else 1)
    test = found["settings"]
    assert (test["horizon"], test["seeds"], found["n_candidates"]) == (1, 6, 4)
    assert (run / "certificate.png").read_bytes().startswith(b"\x89PNG")
    assert "equilibrium" in capsys.readouterr().out.lower()
    assert found["rounds"] == 2
    assert "equilibrium, after 2 rounds: " in (run / "certificate.md").read_text()
    assert status("page", "certify", "--run", str(run), "--sees", "6") == 2
    assert status("page", "certify", "--run", str(run), "--preset", "smoke") == 2
    assert "takes no --config, --preset" in capsys.readouterr().err
    with monkeypatch.context() as locked:
        locked.setattr("os.access", lambda path, mode: False)
        assert status("page", "certify", "--run", str(run)) == 2
    assert "make it writable, or certify a copy" in capsys.readouterr().err
    assert main(["train", "page", "--resume", "--run.name", run.name, "--rounds=3"]) == 0
    assert not list(run.glob("certificate*"))  # it was of another end


def test_a_run_is_certified_before_and_after_it_learnt(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quick = [
        "grid=2",
        "horizon=1",
        "shortlist=1",
        "seeds=2",
        "screen_seeds=1",
        "off_path=0",
        "leaders=1",
    ]
    words = ["train", "page", *SMALL]
    words += ["--certify=true", *(f"--certificate.{one}" for one in quick)]
    assert main([*words, "--logger.wandb=off", "--run.progress=false"]) == 0
    (run,) = (tmp_path / "runs" / "page").glob("synthetic*")
    before, after = (
        json.loads((run / f"certificate{which}.json").read_text()) for which in ("-before", "")
    )
    assert before["leaders"] != after["leaders"]
    said = capsys.readouterr().out
    for words, one in (("before learning: ", before), ("at the end: ", after)):
        assert f"Note: {words}" in said
        assert f"ε = {one['epsilon']:.4g}" in said
    for name in ("certificate-before", "certificate"):
        assert (run / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        text = (run / f"{name}.md").read_text()
        assert f"({name}.png)" in text
        when = "before learning" if name == "certificate-before" else "after 2 rounds"
        assert f"equilibrium, {when}: " in text


def status(*words) -> int:
    """Exit status of a command."""
    try:
        return main(list(words))
    except SystemExit as ended:
        return int(ended.code)
