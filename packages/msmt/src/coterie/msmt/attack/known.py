"""What the server hears, and what it knows of a scenario's network by it.

An ear stands where the exchange does, so it hears messages as the server gets them, clipped and
with noise where a run has these, and never sees the scenarios' private state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.federation.exchange import Answers, Exchange, Request
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.fedamp import CloudModel
from coterie.core.methods.kit.model_messages import GlobalModel, ModelUpdate
from coterie.core.methods.kit.model_server import ServerModel
from coterie.core.methods.kit.parts import part
from coterie.core.privacy.releases import releases
from coterie.core.protocol.messages import Aligned, Down, Up
from coterie.core.tensors import tree
from coterie.msmt.algorithm import PFServer
from coterie.msmt.attack.uploads import with_upload
from coterie.msmt.messages import Aggregate, ScenarioUpdate
from coterie.msmt.models.template import ScenarioPart, scenario_part


@dataclass(frozen=True)
class Overheard:
    """What crossed between the server and one scenario in one ask.

    Attributes:
        step: what was asked for.
        scenario: its number.
        down: what it received, of one scenario.
        up: what it sent, as the server gets it.
    """

    step: str
    scenario: int
    down: Down | None
    up: Up | None

    def norm(self) -> float:
        """L2 norm of all that clipping is about; 0 where nothing is."""
        squares = [value.double().square().sum() for value in releases(self.up)]  # type: ignore[union-attr]
        return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


class Ear(Exchange):
    """An exchange that hears what passes through another one, and changes nothing.

    Args:
        inner: what reaches the scenarios.

    Attributes:
        heard: what crossed since it was last emptied, in order.
    """

    def __init__(self, inner: Exchange) -> None:
        self.inner = inner
        self.heard: list[Overheard] = []

    def present(self, block: int) -> Tensor:
        """Who takes part, as the inner exchange says."""
        return self.inner.present(block)

    def enrol(self, ids: Tensor, block: int) -> Tensor:
        """Let the inner exchange enrol newcomers."""
        return self.inner.enrol(ids, block)

    def ask(self, request: Request) -> Iterator[Answers]:
        """Hear what is asked and answered, of those whose answer counts.

        Nothing is summed before it is heard, as processes of ``engine.workers`` would.
        """
        for answers in self.inner.ask(replace(request, fold=None)):
            self.heard += _crossed(request, answers)
            yield answers

    def rest(self) -> None:
        """Let the inner exchange rest."""
        self.inner.rest()

    def to_plain(self) -> Any:
        """The private state of the inner exchange, for its checkpoint; it is not looked into."""
        return self.inner.to_plain()

    def load_plain(self, plain: Any) -> None:
        """Restore the inner exchange."""
        self.inner.load_plain(plain)

    def emptied(self) -> list[Overheard]:
        """Give what was heard, and forget it."""
        heard, self.heard = self.heard, []
        return heard


def _crossed(request: Request, answers: Answers) -> Iterator[Overheard]:
    for place, scenario in enumerate(answers.ids.tolist()):
        one = torch.tensor([place])
        down = request.down_for(answers.ids[one])
        if isinstance(request.down, Aligned):
            down = tree.as_one(down)
        up = None if answers.up is None else tree.as_one(tree.take(answers.up, one))
        yield Overheard(request.step.name, scenario, down, up)


# What the server knows of a scenario's network: the first one, and what has crossed since.


@dataclass(frozen=True)
class Seen:
    """What one upload shows.

    Attributes:
        scenario: whose it is.
        before: parameters and buffers of its network as the server knows them, without the upload.
        after: the same with it.
        increments: of the parameters by their names in the network, where they were uploaded.
        samples: number of training samples that it says it has.
        pull: strength of a pull towards what it received, as FedAMP's.
    """

    scenario: int
    before: Params
    after: Params
    increments: Params
    samples: int
    pull: float = 0.0


class Knowledge(ABC):
    """What a server that remembers everything knows of the scenarios' networks.

    Args:
        first: the network that all start from, which the server drew.
    """

    def __init__(self, first: Mapping[str, Tensor]) -> None:
        self.first = dict(first)

    @abstractmethod
    def hear(self, one: Overheard) -> Seen | None:
        """Take in what crossed; say what it shows where it is an upload of parameters."""


class WholeModels(Knowledge):
    """Of methods that send a model and receive what training changed of it.

    What they do not share (``train.share``) stays as it was at first.
    """

    def hear(self, one: Overheard) -> Seen | None:
        """Compare the model that was sent with what came back."""
        up, down = one.up, one.down
        if not isinstance(up, ModelUpdate) or not isinstance(down, GlobalModel | CloudModel):
            return None
        before = {**self.first, **down.weights}
        pull = float(down.pull) if isinstance(down, CloudModel) else 0.0
        after = with_upload(before, up.change)
        return Seen(one.scenario, before, after, dict(up.change), int(up.samples), pull)


class SharedParts(Knowledge):
    """Of PF-MSMTrec: W_s, the towers, γ and β, and what ``pf.share`` names.

    What a scenario holds of these is the first values and all mean increments that it was sent, but
    for what its ψ makes of the directions. All else stays as it was at first.

    Args:
        first: as of `Knowledge`.
        scenario: how W_s is written.
    """

    def __init__(self, first: Mapping[str, Tensor], scenario: ScenarioPart) -> None:
        super().__init__(first)
        self._scenario = scenario
        self._start = {**self.first, **scenario.generated(self.first)}
        self._held: dict[int, Params] = {}
        self._affine: dict[int, Params] = {}

    def hear(self, one: Overheard) -> Seen | None:
        """Add increments to what the scenario held; note what it was sent."""
        number = one.scenario
        if isinstance(one.down, Aggregate):
            down = one.down
            mean = {**down.mean, **down.tower_mean, **down.shared}
            held = self._of(number, mean)
            self._held[number] = {name: held[name] + mean[name] for name in held}
        if not isinstance(one.up, ScenarioUpdate):
            return None
        up = one.up
        change = {**up.scenario, **up.towers, **up.shared}
        held, affine = self._of(number, change), up.input_norm()
        before = self.network(held, self._affine.get(number, {}))
        after = self.network(with_upload(held, change), affine)
        self._affine[number] = affine
        named = {name: value for name, value in change.items() if name in self.first}
        return Seen(number, before, after, named, int(up.samples))

    def network(self, held: Params, affine: Params) -> Params:
        """Put what is known of a scenario into the first network.

        Args:
            held: W_s as `coterie.msmt.models.template` names it, towers, and what else is shared.
            affine: γ and β by their names in the network; those of the first where it is empty.
        """
        own = [name for name in held if name in self.first]
        known = {**self.first, **part(held, own), **affine}
        generated = self._scenario.generated(known)
        rest = {name: held[name] - value for name, value in generated.items()}
        return {**known, "scenario_residual": self._scenario.spread(rest)}

    def _of(self, scenario: int, names: Mapping[str, Tensor]) -> Params:
        return self._held.get(scenario) or part(self._start, names)


def knowledge_of(server: object, state: ServerModel) -> Knowledge:
    """What a server knows before the first round, when it has drawn the first network."""
    first = {**state.own, **state.weights}
    if isinstance(server, PFServer):
        module = server.module
        return SharedParts(first, scenario_part(module, server.options.upload))  # type: ignore[arg-type]
    return WholeModels(first)
