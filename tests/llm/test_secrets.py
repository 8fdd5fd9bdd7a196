"""What users hide from the server cannot be made again from all that the server has."""

import io
from typing import Any

import pytest
import torch

from coterie.core.errors import UserError
from coterie.core.methods.ranking.ckks import KeyHolder
from coterie.core.methods.ranking.user_graphs import ThirdParty, item_tokens
from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import build
from coterie.core.tensors.stacked import Ragged
from coterie.llm.experiment import Experiment
from coterie.llm.settings import Settings


def started(method: str, **values: Any) -> FederatedRun:
    """A run as anybody makes it who knows the settings, the seed among them."""
    own = {f"{method}.{name}": value for name, value in values.items()}
    small = {"method": method, "seed": 0, f"{method}.rounds": 2, f"{method}.dim": 2}
    return FederatedRun(Experiment(build(Settings, small | own)).federation())


def what_the_server_has(run: FederatedRun) -> bytes:
    file = io.BytesIO()
    torch.save(run.to_plain()["server"], file)
    return file.getvalue()


def test_the_seed_does_not_turn_tokens_back_into_items(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, match = [], ThirdParty.match
    monkeypatch.setattr(ThirdParty, "match", lambda self, up: heard.append(up) or match(self, up))
    runs = [started("fedpergnn", expand_after=0, neighbours=3, participation=1.0) for _ in range(2)]
    for run in runs:
        run.advance()
    items = Ragged.from_lists([list(range(runs[0].federation.client.n_items))])
    for attacker, tokens in zip(runs[::-1], (up.tokens.values for up in heard), strict=True):
        table = item_tokens(attacker.federation.client.secret, items, items.values.numel())
        assert not bool(torch.isin(tokens, table.values).any())
    first, second = (run.journal.scalars for run in runs)
    assert first["fedpergnn/neighbours"] > 0
    assert {n: v for n, v in first.items() if v == v} == {n: v for n, v in second.items() if v == v}


def test_the_seed_does_not_open_the_private_key() -> None:
    pytest.importorskip("tenseal")
    run, attacker = started("fedmf", transport="ckks"), started("fedmf", transport="ckks")
    run._open_block()
    seen = run.server_state.public["wrapped_key"]
    with pytest.raises(UserError, match="do not have"):
        KeyHolder(attacker.federation.client.secret).unwrap(seen)
    opened = KeyHolder(run.federation.client.secret)
    opened.unwrap(seen)
    assert opened._context.has_secret_key()
    secret = bytes(run.federation.client.secret.to_plain().tolist())
    assert secret not in what_the_server_has(run)
    # Who goes on from the checkpoint plays the clients too, and has what they share.
    plain = run.to_plain()
    attacker.load_plain(plain)
    assert bytes(plain["store"]["secret"].tolist()) == secret
    KeyHolder(attacker.federation.client.secret).unwrap(seen)


def test_masks_change_and_their_sum_does_not() -> None:
    runs = [started("fedmf", transport="masked_sum") for _ in range(2)]
    for run in runs:
        run.advance()
    first, second = (run.server_state.public["items"] for run in runs)
    assert torch.equal(first, second)
    keys = [run.federation.client.secret.key("masks", 0).state for run in runs]
    assert keys[0] != keys[1]


def test_a_secret_in_a_folder(tmp_path) -> None:
    mine = CommonSecret()
    mine.write(tmp_path)
    file = tmp_path / "clients.secret"
    assert file.stat().st_mode & 0o077 == 0
    assert CommonSecret.read(tmp_path).derive("a", 1) == mine.derive("a", 1)
    assert mine.derive("a", 1) != mine.derive("a", 2) != mine.derive("a", "2")
    for wrong, told in (("12\n", "64 hexadecimal"), ("none", "must hold the secret")):
        file.write_text(wrong)
        with pytest.raises(UserError, match=told):
            CommonSecret.read(tmp_path)
    file.unlink()
    with pytest.raises(UserError, match=r"clients\.secret must hold"):
        CommonSecret.read(tmp_path)
