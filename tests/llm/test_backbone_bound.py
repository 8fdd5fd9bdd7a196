"""A run goes with the backbone that it was trained on, and both halves with the same one."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hosted import Hosts, TakenApart

from coterie.core.cli.main import main
from coterie.core.engines.host import ClientHost
from coterie.core.errors import UserError
from coterie.core.federation.federation import check_alike
from coterie.core.registry.papers import find_paper
from coterie.core.settings.configuration import configure
from coterie.llm.experiment import Experiment

FLAGS = ["--rounds", "1", "--model.width", "8", "--model.layers", "1", "--pretrain.steps", "2"]
FLAGS += ["--data.clients", "2", "--data.shots", "60", "--logger.wandb", "off"]


def moved(path: Path, by: float = 1e-3) -> None:
    """Move one frozen weight of a file."""
    held = load_file(path)
    name = next(name for name, value in held.items() if value.is_floating_point())
    held[name].view(-1)[0] += by
    save_file(held, path)


def test_a_run_is_not_read_with_another_backbone(
    tmp_path: Path, own_backbones: None, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*FLAGS, "--run.out", str(tmp_path), "--run.name", "a", "--run.progress", "false"]
    assert main(["train", "pplr", *flags]) == 0
    (weights,) = tmp_path.glob("pplr/backbones/*.safetensors")
    before = weights.read_bytes()
    moved(weights)
    run = str(tmp_path / "pplr" / "a")
    for command in (["evaluate", "--run", run], ["recommend", "--run", run, "--user", "1"]):
        capsys.readouterr()
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "are not those that the run was trained with" in line
    weights.write_bytes(before)
    assert main(["evaluate", "--run", run]) == 0


def experiment(out: Path) -> Experiment:
    flags = [*FLAGS, "--run.out", str(out)]
    return Experiment(configure(find_paper("pplr"), flags).settings)


def test_server_and_clients_with_different_backbones_are_told(
    tmp_path: Path, own_backbones: None
) -> None:
    one = experiment(tmp_path).federation()
    check_alike(one.server, experiment(tmp_path).federation().client)
    (weights,) = tmp_path.glob("pplr/backbones/*.safetensors")
    moved(weights)
    with pytest.raises(UserError, match="another 'backbone'"):
        check_alike(one.server, experiment(tmp_path).federation().client)


def test_halves_that_run_apart_name_the_backbone_too(tmp_path: Path) -> None:
    given, ids = experiment(tmp_path), torch.arange(2)
    named = given.backbone.constants()
    assert list(named) == ["backbone"]
    apart = TakenApart.of(given, tmp_path, list(ids.split(1)))
    with Hosts(apart.folders) as exchange:
        assert apart.over(exchange).federation.server.constants() == named
    for folder in apart.folders:
        assert ClientHost(folder).client.constants() == named


def test_a_client_half_that_is_given_is_held_against_the_card(
    tmp_path: Path, own_backbones: None
) -> None:
    given = experiment(tmp_path)
    folder, _ = TakenApart.of(given, tmp_path / "apart", list(torch.arange(2).split(1))).folders
    assert ClientHost(folder, given.federation().client).client is not None
    (weights,) = tmp_path.glob("pplr/backbones/*.safetensors")
    moved(weights)
    with pytest.raises(UserError, match="another 'backbone'"):
        ClientHost(folder, experiment(tmp_path).federation().client)
