"""``coterie llm attack``: find the input in what each layer gives (PPLR, Figure 3a)."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    "learns it on 80 % of the users and is measured on the others. Of an encoder, which sends "
    "public titles, find which of them a batch asks for. Of a trained run (--run), or of a "
    "backbone before the first round; then every setting of `coterie train pplr` may be given."
)

_TOKENS = {
    "cosine": "cosine",
    "tokens found": "recovery",
    "nearest: cosine": "nearest_cosine",
    "nearest: found": "nearest_recovery",
    "without h: cosine": "trivial_cosine",
    "without h: found": "trivial_recovery",
}
_TITLES = {"titles found": "found", "without h: found": "trivial_found"}


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
        found = _attacked(given, flags)
    if given.json:
        print_json(found.rows)
        return
    print_rows([_shown(row, found.columns) for row in found.rows], found.title)
    for line in found.notes:
        tell(line)


def _parser() -> Arguments:
    parser = Arguments("llm attack", ABOUT)
    parser.add_argument("--run", type=Path, metavar="RUN", help="folder of a trained run")
    parser.add_argument("--client", type=int, help="of the run (default: all, each by its adapter)")
    parser.add_argument(
        "--seeds", type=seeds, default=[0, 1, 2], help="how many, or which: 3 (default), or '7 9'"
    )
    parser.add_argument("--steps", type=positive, help="of Adam (default: 500); not of an encoder")
    parser.add_argument(
        "--loss", choices=("cosine", "mse"), help="1 - cosine (default), or MSE; not of an encoder"
    )
    parser.add_argument(
        "--examples",
        type=positive,
        default=1000,
        help="sequences in all (default: 1000); of an encoder at least so many, in whole batches",
    )
    parser.add_argument("--out", type=Path, help="PNG (default: in the run's folder)")
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="what `llm serve` has kept of a run split there"
    )
    parser.add_argument("--server", dest="state", type=Path, default=SUPPRESS, help=SUPPRESS)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser


@dataclass(frozen=True)
class _Target:
    """Whom to attack: the clients of a run, or of an experiment before the first round."""

    experiment: Any
    clients: Sequence[int]
    start: Callable[[], Any]
    backbone: Callable[[int], Any]
    path: Path


@dataclass(frozen=True)
class _Found:
    """Rows for programs, and how people see them."""

    rows: list[dict[str, Any]]
    columns: Mapping[str, str]
    title: str
    notes: list[str]


def _attacked(given: Any, flags: Sequence[str]) -> _Found:
    """Attack under every seed, and draw."""
    # Torch only where it is needed: --help does not wait for it.
    import torch

    from coterie.llm.backbones.encoder import Encoder

    opened = _opened(given, flags)
    torch.set_num_threads(opened.experiment.settings.engine.threads)
    if isinstance(opened.experiment.backbone, Encoder):
        return _titles(given, opened)
    return _tokens(given, opened)


def _titles(given: Any, opened: _Target) -> _Found:
    """Find which titles the batches of training ask for."""
    import torch

    from coterie.core.tensors.keys import Key
    from coterie.llm.asked_titles import batches, draw, guesses, rows, text_states, titles_found

    for name in ("steps", "loss"):
        if getattr(given, name) is not None:
            raise UserError(f"--{name} is of an attack that learns, and titles are found without")
    experiment, clients, encoder = opened.experiment, opened.clients, opened.start()
    public, text_of = text_states(encoder), encoder.text_of
    same = None if given.run else guesses(encoder, public)  # all have the same before training
    guess = {client: guesses(opened.backbone(client), public) for client in clients if given.run}
    guess |= {client: same for client in clients if same is not None}
    popularity = experiment.data.public_counts()
    counts = torch.zeros(public.shape[1], dtype=popularity.dtype)
    counts = counts.index_add(0, text_of, popularity)
    train, least = experiment.clients.train, given.examples
    reports = []
    for seed in given.seeds:
        key = Key.from_seed(seed).fold("attack")
        asked = batches(train, text_of, clients, experiment.settings, least, key)
        reports.append(titles_found(asked, guess, counts))
    about = {"seeds": len(reports), "batches": reports[0].batches, "texts": len(counts)}
    table = [{**row, **about} for row in rows(reports)]
    first, layers, below = reports[0], len(encoder.layers), encoder.below
    crosses = (
        "The server of a split model gets h_k of a batch's titles, and computes those up to layer "
        "N - 1 from it."
        if below < layers - 1
        else "With these settings no batch is seen: no layer of the server's is trained, and it "
        "gets the whole catalogue once, which tells nothing."
    )
    notes = [
        f"{first.batches:,} batches of {first.examples:.0f} examples, each asking for "
        f"{first.titles:.0f} of {len(counts):,} titles; {len(reports)} seeds.",
        f"{crosses} Which of a batch's titles are of one user is not sent.",
        f"Drawn in {draw(table, len(reports), given.out or opened.path)}",
    ]
    return _Found(table, _TITLES, "How many of a batch's titles are found from h_l", notes)


def _tokens(given: Any, opened: _Target) -> _Found:
    """Rebuild the tokens of unseen users."""
    from coterie.core.tensors.keys import Key
    from coterie.llm.attack import Attacker, attack, draw, known_embeddings, rows, victims

    settings, key = opened.experiment.settings, Key.from_seed(given.seeds[0])
    embeddings, longest = known_embeddings(opened.start()), settings.data.max_history
    whose = opened.experiment.data, opened.backbone, opened.clients
    found = victims(*whose, longest, given.examples, key)
    attacker = Attacker(steps=given.steps or 500, loss=given.loss or "cosine")
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
        f"Drawn in {draw(table, len(reports), given.out or opened.path)}",
    ]
    return _Found(table, _TOKENS, "How well unseen users' tokens are found from h_l", notes)


def _opened(given: Any, flags: Sequence[str]) -> _Target:
    """Open a run, or make a backbone before training."""
    from coterie.llm.trained_run import TrainedRun

    if given.run:
        run = TrainedRun(given.run, given.state)
        clients = range(run.n_clients) if given.client is None else [given.client]
        run.check(clients[0])
        return _Target(run.experiment, clients, run.start, run.backbone, given.run / "attack.png")
    paper = find_paper("llm")
    settings = configure(paper, flags).settings
    # Everything below is computed on the CPU, as a run is opened there.
    settings = replace(settings, engine=replace(settings.engine, device="cpu"))
    experiment = load(paper.experiment)(settings)
    chosen = experiment.settings
    folder = chosen.run.folder / paper.name / "attack"
    return _Target(
        experiment,
        range(chosen.data.clients),
        lambda: experiment.backbone,
        lambda client: experiment.backbone,
        folder / f"{Path(chosen.data.name).stem}-{chosen.model.name}.png",
    )


def _shown(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """One row for people: mean ± standard deviation."""
    from coterie.core.tables.paired import Spread

    pairs = {
        name: str(Spread(row[key], row[f"{key}_sd"], row["seeds"])) for name, key in columns.items()
    }
    return {"layer": row["layer"], **pairs}
