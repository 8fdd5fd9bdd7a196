"""What a run needs is estimated, and refused, before anything is built."""

from pathlib import Path

import pytest

from coterie.continual.client import ContinualClient
from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.experiment import STEP, Need, check, machine_memory
from coterie.core.settings.configuration import configure

GIGABYTE = 10**9


def test_the_largest_part_is_named() -> None:
    small, large = Need("a", ("x",), memory=3), Need("b", ("y", "z.w"), memory=4 * GIGABYTE)
    check([small, large], memory=4 * GIGABYTE + 3)
    with pytest.raises(UserError) as caught:
        check([small, large], memory=4 * GIGABYTE + 2)
    assert str(caught.value) == (
        "b would take about 4.0 GB of memory, and this machine has 4.0 GB: lower --y or --z.w"
    )


def test_a_round_may_take_a_day() -> None:
    a_day = round(24 * 3600 / STEP)
    check([Need("a", ("x",), steps=a_day)])
    with pytest.raises(UserError, match=r"^a would take about 1 days a round.*lower --x$"):
        check([Need("a", ("x",), steps=a_day + 1)])
    with pytest.raises(UserError, match=r"lower --y$"):
        check([Need("a", ("x",), steps=a_day), Need("b", ("y",), operations=10**19)])


def test_this_machine_has_memory() -> None:
    assert GIGABYTE // 8 < machine_memory() < 10**15
    check([])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("f3crec --model.dim 1000000000", "--model.dim"),
        ("f3crec --model.epochs 1000000000", "--model.epochs or --model.negatives"),
        ("f3crec --method rlp2 --rlp2.capacity 1000000000", "--rlp2.capacity"),
        ("f3crec --top_k 1000000000", "'top_k' 1000000000 exceeds the 337 items"),
        ("f3crec --model.negatives 1000000", "'model.negatives' 1000000 exceeds the 337 items"),
        ("f3crec --model.dim 1000000000000000000", "'model.dim' must be at most"),
        ("f3crec --model.negatives 1000000000000", "'model.negatives' must be at most"),
        ("f3crec --rounds 1e-9", "--rounds: expected a whole number, not '1e-9'"),
        ("f3crec --rounds 99999999999", "'rounds' must be at most 2147483647"),
        ("f3crec --engine.threads 1000000", "'engine.threads' must be at most 1024"),
        ("page --data.clients 1000000000", "--data.clients"),
        ("page --method fedavg --data.clients 1000000000", "lower --data.clients"),
        ("page --train.epochs 1000000000", "lower --train.epochs"),
        ("page --client_agent.capacity 1000000000", "--client_agent.capacity"),
        ("page --client_agent.hidden [1000000,1000000]", "--client_agent.hidden"),
        ("page --client_agent.updates 1000000000", "the clients' agents would take about"),
        (
            "page --client_agent.batch_size 1000000000",
            "'client_agent.batch_size' 1000000000 exceeds the 200 experiences",
        ),
        (
            "page --server_agent.batch_size 1000000000",
            "'server_agent.batch_size' 1000000000 exceeds the 1000 experiences",
        ),
        ("page --method dap-fl --dap_fl.agent.batch_size 1000000", "exceeds the"),
        ("page --server_agent.capacity 1000000000", "--server_agent.capacity"),
        ("pplr --model.width 1000000000", "--model.width or --model.layers"),
        ("pplr --model.layers 1000000000", "--model.width or --model.layers"),
        ("pplr --train.epochs 1000000000", "lower --train.epochs"),
        ("pplr --method fedmf --fedmf.dim 1000000000", "lower --fedmf.dim"),
        ("pplr --method lightfr --lightfr.bits 2000000000", "lower --lightfr.bits"),
        ("pplr --method fedpergnn --fedpergnn.dim 1000000000", "lower --fedpergnn.dim"),
        ("mtal --model.hidden 1000000000", "lower --model.hidden"),
        (
            "mtal --method residuals --model.name autorec --model.hidden 1000000000",
            "lower --model.hidden or --model.code or --model.members",
        ),
        (
            "mtal --method residuals --model.name blend --train.epochs 1000000000",
            "lower --train.epochs or --model.members",
        ),
    ],
)
def test_hopeless_sizes_are_one_line(
    argv: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def build(*_: object, **__: object) -> None:
        raise AssertionError("something was built")

    monkeypatch.setattr("coterie.core.run.experiment.machine_memory", lambda: 16 * GIGABYTE)
    monkeypatch.setattr(Federation, "__init__", build)
    monkeypatch.setattr(ContinualClient, "__init__", build)
    assert main(["train", *argv.split(), "--out", str(tmp_path / "runs")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("coterie: error: ")
    assert err.count("\n") == 1
    assert words in err
    assert not (tmp_path / "runs").exists()


def test_more_rounds_than_anybody_waits_for_end_by_patience(tmp_path: Path) -> None:
    flags = ["--logger.wandb", "off", "--run.progress", "false", "--patience", "1"]
    flags += ["--run.out", str(tmp_path), "--run.name", "long"]
    assert main(["train", "f3crec", "--preset", "smoke", "--rounds", "1000000000", *flags]) == 0
    assert (tmp_path / "f3crec" / "long" / "summary.json").is_file()


def test_a_batch_of_pplr_is_no_larger_than_what_a_client_has() -> None:
    paper = find_paper("pplr")
    found = []
    for size in ("100000", "2000000000"):
        settings = configure(paper, ["--train.batch_size", size]).settings
        needs = load(paper.experiment)(settings).needs()
        found.append(next(need for need in needs if need.what == "a batch"))
    assert found[0] == found[1]
    assert found[0].memory > 1000


@pytest.mark.parametrize("paper", ["f3crec", "mtal", "page", "pplr"])
def test_a_plain_run_needs_little(paper: str) -> None:
    found = find_paper(paper)
    needs = load(found.experiment)(configure(found, []).settings).needs()
    check(needs, memory=GIGABYTE)
    assert sum(need.memory for need in needs) > 1000


def test_the_estimate_of_f3crec_is_from_below() -> None:
    paper = find_paper("f3crec")
    settings = configure(paper, ["--model.dim", "64"]).settings
    experiment = load(paper.experiment)(settings)
    embeddings = experiment.needs()[0].memory
    users = experiment.interactions.n_users * 64 * 4
    items = experiment.interactions.n_items * 64 * 4
    assert users + items < embeddings <= 3 * (users + items)


@pytest.mark.parametrize(
    ("method", "model", "flags"),
    [
        ("alone", "gaussian", ["--model.code=1000000000", "--model.rank=1000000000"]),
        ("sums", "autorec", ["--model.code=32", "--train.epochs=1000000000"]),
    ],
)
def test_models_of_samples_need_nothing_for_what_they_do_not_read(
    method: str, model: str, flags: list[str]
) -> None:
    paper = find_paper("mtal")
    words = [f"--method={method}", f"--model.name={model}", *flags]
    check(load(paper.experiment)(configure(paper, words).settings).needs(), memory=GIGABYTE)
