"""The client half of MTAL, Algorithm 1: one organisation, with its own data, model and loss."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.assisted.aae.network import Params
from coterie.assisted.aae.pattern import Pattern as CellPattern
from coterie.assisted.aae.training import train
from coterie.assisted.aggregation import Choice, Fit, choose
from coterie.assisted.data.organisations import OwnDomain
from coterie.assisted.learner import Learner
from coterie.assisted.messages import (
    ALIGN,
    COMBINE,
    FIT,
    MEET,
    PATTERN,
    RESIDUAL,
    Alignment,
    Announcement,
    Fits,
    Outputs,
    Pattern,
    Peers,
    Progress,
    PseudoTargets,
    Residuals,
    Turn,
)
from coterie.assisted.predictor import Predictor, named, numbered
from coterie.assisted.protection import protected
from coterie.assisted.state import Model, OrganisationState, Peer, RoundChoice
from coterie.assisted.sums import Masks, mean_of_round
from coterie.assisted.view import View, common, places_of
from coterie.core.tensors.appended import Appended
from coterie.core.tensors.keys import Key


class Organisation(Predictor):
    """An organisation that assists others and is assisted by them.

    Args:
        settings: with the reading's choices resolved.
    """

    def enrol(self, data: OwnDomain, key: Key) -> OrganisationState:
        """Begin with the base model F⁰ (section 3.3)."""
        base = self.learner(data).base
        return OrganisationState(
            shared=torch.full((data.train.n_rows,), -1, dtype=torch.int32),
            peers=Appended(),
            models=Appended(),
            choices=Appended(),
            scores=base.at(data.train),
            held=base.at(data.valid),
            own=torch.empty(0),
            sent=torch.empty(0),
        )

    @ALIGN
    def align(
        self, down: None, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[Announcement, None]:
        """Say whom it knows, under names that only organisations can make."""
        return Announcement(data.rows, torch.tensor(data.train.n_columns)), None

    @PATTERN
    def pattern(
        self, down: Alignment, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[Pattern, OrganisationState]:
        """Say where it has ratings of users (or items) that others know."""
        mine = replace(mine, shared=down.numbers)
        return Pattern(places_of(mine, data.train), places_of(mine, data.valid)), mine

    @MEET
    def meet(
        self, down: Peers, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[None, OrganisationState]:
        """Note who the others are."""
        peers = mine.peers
        for name in sorted(down.cells, key=int):
            about = down.columns[name], down.rows[name], down.cells[name], down.queries[name]
            peers = peers.append(Peer(int(name), *about))
        return None, replace(mine, peers=peers)

    @RESIDUAL
    def residual(
        self, down: Turn, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[Residuals, OrganisationState | None]:
        """Compute r_k = -∂L_k(F_k^{t-1}, R_k)/∂F at the cells of common rows (Eq. 5)."""
        how = self.settings.protect
        sent = protected(self._residual(mine, data), how, key.fold("protect"))
        new = replace(mine, sent=sent) if how.own == "protected" else None
        return Residuals(sent[common(mine, data.train)]), new

    @FIT
    def fit(
        self, down: PseudoTargets, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[Fits, OrganisationState]:
        """Fit a new autoencoder to all residuals at hand; answer for the cells of each peer."""
        view, learner = self.view(mine, data), self.learner(data)
        residuals = numbered(down.residuals)
        if self.settings.train.own_targets != "none" or not residuals:
            fits_sent = self.settings.protect.own == "protected"
            residuals[data.id] = mine.sent if fits_sent else self._residual(mine, data)
        targets = view.targets(residuals)
        params = self.fitted(learner, view, targets.pattern, targets.sorted(residuals), key)
        wanted = view.wanted
        found = wanted.parted(self.outputs(learner, view, params, wanted.pattern))
        models = mine.models.append(Model(down.round, params))
        mine = replace(mine, models=models, own=found[data.id], sent=torch.empty(0))
        fits = {int(peer): found[int(peer)] for peer in down.cells}
        if self.settings.protect.sum:
            return Fits(None, Masks(data, down.roster, "fit", down.round).hidden(fits)), mine
        return Fits(named(fits), None), mine

    @COMBINE
    def combine(
        self, down: Outputs, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[Progress, OrganisationState]:
        """Choose w and η, and move: F^t = F^{t-1} + η Σ_j w_j f_j (Eq. 6 to 8)."""
        view, learner, how = self.view(mine, data), self.learner(data), self.settings.assist
        cells, n, use_own = [data.train, data.valid], len(data.train), how.own == "use"
        if not self.settings.protect.sum:
            models, outputs = view.outputs(cells, mine.own, numbered(down.values), use_own)
        elif down.total is not None:
            models, outputs = mean_of_round(data, down, mine.own if use_own else None)
        else:  # a peer did not answer, so that nobody has outputs of the round
            stays = Choice(torch.tensor(0.0), torch.zeros(1))
            return self._progress(mine, data, stays), replace(mine, own=torch.empty(0))
        outputs = outputs.double()
        every = Fit(
            learner.objective,
            torch.cat([part.values for part in cells]).double(),
            torch.cat([mine.scores, mine.held]).double(),
            outputs,
        )
        choice = choose(every.at(slice(n)), how, every.at(slice(n, None)))
        step = choice.step(outputs).to(mine.scores)
        mine = replace(
            mine,
            scores=mine.scores + step[:n],
            held=mine.held + step[n:],
            choices=mine.choices.append(
                RoundChoice(down.round, models, choice.eta, choice.weights)
            ),
            own=torch.empty(0),
        )
        return self._progress(mine, data, choice), mine

    def fitted(
        self, learner: Learner, view: View, pattern: CellPattern, values: Tensor, key: Key
    ) -> Params:
        """Train a new autoencoder to give values, ``(n,)``, at the cells of a pattern."""
        network, inputs = learner.network(view.n_columns), learner.inputs(view.first_column)
        return train(network, inputs, pattern, values, learner.plan, key).params

    def _progress(self, mine: OrganisationState, data: OwnDomain, choice: Choice) -> Progress:
        return Progress(
            loss=self.learner(data).objective.loss(data.train.values, mine.scores).mean(),
            residual=self._residual(mine, data).square().mean().sqrt(),
            eta=choice.eta,
            weights=choice.weights,
            cells=torch.tensor(len(data.train)),
        )

    def _residual(self, mine: OrganisationState, data: OwnDomain) -> Tensor:
        """r_k at all training cells, ``(n,)``; those of rows that nobody else has stay."""
        return self.learner(data).objective.residual(data.train.values, mine.scores)
