"""Small organisations with random ratings and features; some rows and columns are empty."""

import torch

from coterie.assisted.client_halves import make_client
from coterie.assisted.data import Organisations, OwnDomain
from coterie.assisted.server_halves import make_server
from coterie.core.data.interactions.cells import Cells, Domain
from coterie.core.federation.federation import Federation
from coterie.core.protocol.card import Card
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(11)


def own_domain(number=0, rows=13, columns=6, implicit=False, dtype=torch.float64):
    """An organisation whose ratings follow no rule."""
    key = KEY.fold("domain", number)
    part = (key.fold("part").uniform(rows, columns) * 10).long()  # 0-4 train, 5 valid, 6 test
    part[3] = part[:, columns - 1] = 9
    values = (key.fold("values").uniform(rows, columns) * 5).floor().to(dtype) + 1
    values = (values > 3).to(dtype) if implicit else values

    def cells(chosen):
        row, column = chosen.nonzero(as_tuple=True)
        return Cells.from_pairs(row, column, values[row, column], rows, columns)

    features = (
        key.fold("x").normal(rows, 3, dtype=dtype),
        key.fold("y").normal(columns, 2).to(dtype),
    )
    domain = Domain(
        f"domain {number}",
        torch.arange(rows),
        torch.arange(columns),
        cells(part < 5),
        cells(part == 5),
        cells(part == 6),
        *features,
    )
    return OwnDomain(number, KEY.bits(torch.arange(rows)), domain)


def organisations(count=3, implicit=False):
    """Organisations in float32, as runs have them."""
    sizes = range(5, 5 + count)
    each = [own_domain(k, 13, n, implicit, torch.float32) for k, n in enumerate(sizes)]
    return Organisations.of(each)


def run_of(settings, data):
    """A run of a method over organisations that are in this process."""
    card = Card.of("mtal", settings, {})
    server, client = make_server(card, data.ids), make_client(card)
    rounds, seed = server.settings.rounds, settings.seed
    return FederatedRun(Federation(server, client, [data], seed=seed, rounds=rounds))


def finished(run):
    """The same run, after its last round."""
    while not run.finished:
        run.advance()
    return run
