"""``coterie llm attack``: rebuild the input from what each layer gives (PPLR, Figure 3a)."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.cli.command import (
    JSON_HELP,
    Arguments,
    aside,
    positive,
    print_json,
    print_rows,
    seeds,
    tell,
)
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper, load
from coterie.core.settings.configuration import configure

ABOUT = (
    "Rebuild the tokens of users from the hidden states of each layer, to choose k: a network "
    "learns it on 80 % of the users and is measured on the others. Of a trained run (--run), or of "
    "a backbone before the first round; then every setting of `coterie train pplr` may be given."
)

_SHOWN = {
    "cosine": "cosine",
    "tokens found": "recovery",
    "nearest: cosine": "nearest_cosine",
    "nearest: found": "nearest_recovery",
    "without h: cosine": "trivial_cosine",
    "without h: found": "trivial_recovery",
}


def run(argv: Sequence[str]) -> None:
    """Run the command.

    Raises:
        UserError: an argument or a setting is bad, or there is no such run or client.
    """
    given, flags = _parser().parse_known_args(list(argv))
    if given.run and flags:
        raise UserError(f"{flags[0]} beside --run: a run has settings of its own, leave it out")
    if given.client is not None and not given.run:
        raise UserError("--client needs --run: before training all clients have the same adapter")
    with aside(given.json):
        rows, notes = _attacked(given, flags)
    if given.json:
        print_json(rows)
        return
    print_rows([_shown(row) for row in rows], "How well unseen users' tokens are found from h_l")
    for line in notes:
        tell(line)


def _parser() -> Arguments:
    parser = Arguments("llm attack", ABOUT)
    parser.add_argument("--run", type=Path, metavar="RUN", help="folder of a trained run")
    parser.add_argument("--client", type=int, help="of the run (default: all, each by its adapter)")
    parser.add_argument(
        "--seeds", type=seeds, default=[0, 1, 2], help="how many, or which: 3 (default), or '7 9'"
    )
    parser.add_argument("--steps", type=positive, default=500, help="of Adam (default: 500)")
    parser.add_argument(
        "--loss", choices=("cosine", "mse"), default="cosine", help="1 - cosine (default), or MSE"
    )
    parser.add_argument(
        "--examples", type=positive, default=1000, help="sequences in all (default: 1000)"
    )
    parser.add_argument("--out", type=Path, help="PNG (default: in the run's folder)")
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="what `llm serve` has kept of a run split there"
    )
    parser.add_argument("--server", dest="state", type=Path, default=SUPPRESS, help=SUPPRESS)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser


def _attacked(given: Any, flags: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Attack under every seed and draw; rows for programs, and what is to be said."""
    # Torch only where it is needed: --help does not wait for it.
    from coterie.core.tensors.keys import Key
    from coterie.llm.attack import Attacker, attack, draw, rows

    found, embeddings, path = _victims(given, flags)
    attacker = Attacker(steps=given.steps, loss=given.loss)
    reports = [
        attack(*found, embeddings, attacker, Key.from_seed(seed).fold("attack"))
        for seed in given.seeds
    ]
    first = reports[0]
    about = {
        "seeds": len(reports),
        "users": sum(first.users),
        "tokens": sum(first.tokens),
        "vocabulary": len(embeddings),
    }
    table = [{**row, **about} for row in rows(reports)]
    notes = [
        f"{about['tokens']:,} tokens of {about['users']:,} users, those in every sequence left "
        f"out, of a vocabulary of {about['vocabulary']:,}; learnt on {first.users[0]:,} users, "
        f"measured on {first.users[1]:,}; {about['seeds']} seeds.",
        "The server of a split model gets h_k and computes those up to layer N - 1 from it.",
        f"Drawn in {draw(table, len(reports), given.out or path)}",
    ]
    return table, notes


def _victims(given: Any, flags: Sequence[str]) -> tuple[tuple[Any, Any], Any, Path]:
    """Give what is attacked, of a run or of a backbone before training.

    Beside it the input embeddings that everybody knows, and where to draw.
    """
    import torch

    from coterie.core.tensors.keys import Key
    from coterie.llm.attack import known_embeddings, victims
    from coterie.llm.trained_run import TrainedRun

    if given.run:
        run = TrainedRun(given.run, given.state)
        experiment, path = run.experiment, given.run / "attack.png"
        clients = range(run.n_clients) if given.client is None else [given.client]
        run.check(clients[0])
        start, backbone = run.start, run.backbone
    else:
        paper = find_paper("llm")
        experiment = load(paper.experiment)(configure(paper, flags).settings)
        clients = range(experiment.settings.data.clients)
        start, backbone = (lambda: experiment.backbone), (lambda client: experiment.backbone)
        chosen = experiment.settings
        folder = chosen.run.folder / paper.name / "attack"
        path = folder / f"{Path(chosen.data.name).stem}-{chosen.model.name}.png"
    settings = experiment.settings
    torch.set_num_threads(settings.engine.threads)
    table, key = known_embeddings(start()), Key.from_seed(given.seeds[0])
    longest, most = settings.data.max_history, given.examples
    return victims(experiment.data, backbone, clients, longest, most, key), table, path


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row for people: mean ± standard deviation."""
    from coterie.core.tables.paired import Spread

    pairs = {
        name: str(Spread(row[key], row[f"{key}_sd"], row["seeds"])) for name, key in _SHOWN.items()
    }
    return {"layer": row["layer"], **pairs}
