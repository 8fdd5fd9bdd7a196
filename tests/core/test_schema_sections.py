"""Sections of settings: defaults of their own, sections in sections, pairs, what errors name."""

from dataclasses import asdict, dataclass, field

import pytest
import yaml
from tests.parsing import parse

from coterie.core.agents.settings import DDPGSettings
from coterie.core.errors import UserError
from coterie.core.methods.settings.any_module import DapFLOptions
from coterie.core.settings.parser import leaves
from coterie.core.settings.schema import build


def quick() -> DDPGSettings:
    return DDPGSettings(actor_lr=0.25, hidden=(8, 4))


@dataclass(frozen=True)
class Outer:
    """Settings."""

    agent: DDPGSettings = field(default_factory=quick)
    tuner: DapFLOptions = field(default_factory=DapFLOptions)


def test_a_section_keeps_the_defaults_of_its_field() -> None:
    assert leaves(Outer)["agent.actor_lr"].default == 0.25
    assert leaves(Outer)["tuner.agent.critic_lr"].default == DapFLOptions().agent.critic_lr
    found = build(Outer, {"agent.tau": 0.5})
    assert found.agent == DDPGSettings(actor_lr=0.25, hidden=(8, 4), tau=0.5)
    assert found.tuner == DapFLOptions()
    assert build(Outer, {"agent.actor_lr": 5e-4}).agent.actor_lr == 5e-4


def test_pairs_of_numbers_from_flags_and_files(tmp_path) -> None:
    found = parse(Outer, ["--agent.hidden", "[16, 12]", "--tuner.agent.hidden=[3,2]"])
    assert found.agent.hidden == (16, 12)
    assert found.tuner.agent.hidden == (3, 2)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(asdict(found)))
    assert parse(Outer, ["--config", str(file)]) == found


@pytest.mark.parametrize("flag", ["[16]", "[16, 12, 8]", "16", "[16, x]", "[1.5, 2]"])
def test_what_is_no_pair_is_refused(flag: str) -> None:
    with pytest.raises(UserError, match=r"--agent\.hidden: expected a list of 2, as \[1, 2\]"):
        parse(Outer, [f"--agent.hidden={flag}"])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--agent.tau", "3"], "'agent.tau'"),
        (["--tuner.lr_min", "-1"], "'tuner.lr_min'"),
        (["--tuner.agent.hidden", "[0, 1]"], "'tuner.agent.hidden'"),
        (["--tuner.agent.gamma", "1"], "'tuner.agent.gamma'"),
    ],
)
def test_an_error_names_the_whole_key(flags: list[str], named: str) -> None:
    with pytest.raises(UserError, match=f"^{named} must be "):
        parse(Outer, flags)
