"""What an organisation makes of its peers' outputs: weights w, rate η, and F + η Σ w_j f_j.

Eq. 6 to 8. Outputs are ``(n, J)``: of n cells, a column for each of the J models at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.assisted.objective import Objective
from coterie.assisted.settings import AssistSettings
from coterie.core import solvers

_LBFGS_CALLS = 10  # each of at most 20 steps, as the public code makes them
_FIRST_ETA = 0.1  # from where L-BFGS searches η in the public code
_NEWTON_STEPS = 50
_HALVINGS = 30
_GAP = 1e-9
_TURNS = 100


@dataclass(frozen=True)
class Choice:
    """What an organisation chose in a round.

    Attributes:
        eta: η, ``()`` float64.
        weights: w, ``(J,)`` float64 on the simplex.
    """

    eta: Tensor
    weights: Tensor

    def step(self, outputs: Tensor) -> Tensor:
        """η Σ w_j f_j, ``(n,)`` float64, of outputs ``(n, J)``."""
        return self.eta * (outputs.double() @ self.weights)


@dataclass(frozen=True)
class Fit:
    """The loss (1/n) Σ L(R, F + η O w) of an organisation at some of its cells.

    Attributes:
        objective: L.
        rating: R, ``(n,)`` float64.
        scores: F before the round, ``(n,)`` float64.
        outputs: O, ``(n, J)`` float64.
    """

    objective: Objective
    rating: Tensor
    scores: Tensor
    outputs: Tensor

    def at(self, cells: slice) -> Fit:
        """The same at fewer cells."""
        return Fit(self.objective, self.rating[cells], self.scores[cells], self.outputs[cells])

    def loss(self, eta: Tensor | float, weights: Tensor) -> Tensor:
        """The loss of a choice, ``()``."""
        moved = self.scores + eta * (self.outputs @ weights)
        return self.objective.loss(self.rating, moved).mean()


def choose(fit: Fit, how: AssistSettings, held: Fit | None = None) -> Choice:
    """Choose w, then η (Eq. 6 and 7); L-BFGS chooses both at once, as the public code.

    Args:
        fit: at training cells.
        how: what is chosen.
        held: at validation cells, for the rule that looks at these.

    Example:
        >>> from coterie.assisted.objective import Squared
        >>> outputs = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
        >>> ratings, scores = torch.tensor([[2.0, 0.0], [0.0, 0.0]]).double()
        >>> fit = Fit(Squared(), ratings, scores, outputs)
        >>> found = choose(fit, AssistSettings(weights="optimal", eta_rule="optimal"))
        >>> found.weights.tolist(), round(float(found.eta), 6)
        ([1.0, 0.0], 2.0)
    """
    n_models = fit.outputs.shape[1]
    weights = torch.full((n_models,), 1.0 / n_models, dtype=torch.float64)
    eta = torch.tensor(how.eta, dtype=torch.float64)
    if how.weights == "optimal" and n_models > 1:
        weights = best_weights(fit, how.eta)
    if how.eta_rule == "optimal":
        eta = best_eta(fit, weights, how.eta)
    if how.eta_rule == "validation" and held is not None:
        eta = best_eta(held, weights, how.eta).clamp_min(0.0)
    if "lbfgs" in (how.eta_rule, how.weights):
        return _by_lbfgs(fit, Choice(eta, weights), how)
    return Choice(eta, weights)


def settle(fit: Fit, eta: float) -> Choice:
    """Choose w and η by turns until each is the best for the other (ours).

    Of a convex loss η w is then the best of all steps that are nowhere negative, however large. The
    w of a small η would be that of outputs which are large themselves.

    Args:
        fit: at cells that no output was fitted to.
        eta: where the search begins.

    Example:
        >>> from coterie.assisted.objective import Squared
        >>> outputs = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
        >>> ratings, scores = torch.tensor([[6.0, 2.0], [0.0, 0.0]]).double()
        >>> found = settle(Fit(Squared(), ratings, scores, outputs), 0.5)
        >>> [round(float(part), 3) for part in found.eta * found.weights]
        [6.0, 2.0]
    """
    weights = torch.ones(1, dtype=torch.float64)
    if fit.outputs.shape[1] > 1:
        weights = best_weights(fit, eta)
    found = Choice(best_eta(fit, weights, eta).clamp_min(0.0), weights)
    for _ in range(_TURNS if len(weights) > 1 else 0):
        weights = best_weights(fit, float(found.eta))
        better = Choice(best_eta(fit, weights, float(found.eta)).clamp_min(0.0), weights)
        gain = fit.loss(found.eta, found.weights) - fit.loss(better.eta, better.weights)
        if not gain > 0:
            break
        found = better
    return found


def best_weights(fit: Fit, eta: float) -> Tensor:
    """Minimise the loss over the simplex at a given η, ``(J,)`` float64 (Eq. 6)."""
    over = _OverWeights(fit, eta, fit.outputs.shape[1])
    return solvers.minimise(over, tolerance=_GAP).p


def best_eta(fit: Fit, weights: Tensor, start: float) -> Tensor:
    """Minimise the loss over η, ``()`` float64 (Eq. 7).

    By Newton's method, whose first step is the closed form <R - F, f̄> / <f̄, f̄> where the loss is
    squared. Where the outputs say nothing, η stays as it is.
    """
    mean = fit.outputs @ weights
    eta = torch.tensor(start, dtype=torch.float64)
    value = fit.loss(eta, weights)
    for _ in range(_NEWTON_STEPS):
        moved = fit.scores + eta * mean
        slope = fit.objective.residual(fit.rating, moved).to(mean) @ mean
        curvature = fit.objective.curvature(fit.rating, moved).to(mean) @ mean.square()
        if not curvature > 0:
            break
        new, new_value = _halved(fit, weights, eta, slope / curvature, value)
        if not new_value < value:
            break
        eta, value = new, new_value
    return eta


def whole(outputs: Tensor, known: Tensor) -> Tensor:
    """Fill in the outputs of peers who do not know a row by the mean of those who do.

    With equal weights that renormalises them. The step stays linear in w, so that its best is one
    of a convex problem. A cell that nobody knows gets 0: its score stays.

    Args:
        outputs: ``(n, J)``, anything where they are not known.
        known: ``(n, J)`` bool.

    Example:
        >>> known = torch.tensor([[True, True], [True, False], [False, False]])
        >>> whole(torch.tensor([[1.0, 3.0], [5.0, 7.0], [8.0, 9.0]]), known).tolist()
        [[1.0, 3.0], [5.0, 5.0], [0.0, 0.0]]
    """
    if bool(known.all()):
        return outputs
    held = torch.where(known, outputs, 0.0)
    mean = held.sum(1, keepdim=True) / known.sum(1, keepdim=True).clamp_min(1)
    return torch.where(known, outputs, mean)


@dataclass
class _OverWeights:
    """The loss as a function of w, for the solver on the simplex."""

    fit: Fit
    eta: float
    n: int
    convex: bool = True

    def slope(self, p: Tensor) -> tuple[float, Tensor]:
        """Loss at ``p``, ``(J,)``, and its gradient."""
        fit = self.fit
        moved = fit.scores + self.eta * (fit.outputs @ p)
        residual = fit.objective.residual(fit.rating, moved)
        value = fit.objective.loss(fit.rating, moved).mean()
        return float(value), fit.outputs.T @ residual.to(fit.outputs) * (-self.eta / len(residual))


def _halved(
    fit: Fit, weights: Tensor, eta: Tensor, step: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Shorten a Newton step until the loss falls."""
    for _ in range(_HALVINGS):
        new_value = fit.loss(eta + step, weights)
        if new_value < value:
            break
        step = step / 2
    return eta + step, new_value


def _by_lbfgs(fit: Fit, start: Choice, how: AssistSettings) -> Choice:
    """Take L-BFGS steps on η, on logits of w, or on both at once."""
    logits, eta, free = start.weights.clone(), start.eta.clone(), []
    if how.weights == "lbfgs":
        free.append(logits.requires_grad_())
    if how.eta_rule == "lbfgs":
        eta = torch.full_like(eta, _FIRST_ETA)
        free.append(eta.requires_grad_())
    optimizer = torch.optim.LBFGS(free, lr=how.lbfgs_lr)

    def choice() -> Choice:
        return Choice(eta, logits.softmax(0) if how.weights == "lbfgs" else logits)

    def loss() -> Tensor:
        optimizer.zero_grad()
        now = choice()
        value = fit.loss(now.eta, now.weights)
        value.backward()
        return value

    with torch.enable_grad():
        for _ in range(_LBFGS_CALLS):
            optimizer.step(loss)
    found = choice()
    return Choice(found.eta.detach(), found.weights.detach())
