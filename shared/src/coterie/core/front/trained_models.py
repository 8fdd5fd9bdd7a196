"""Models of a run as modules of the caller's own class."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError, nearest
from coterie.core.federation.in_forks import in_this_process
from coterie.core.federation.ledger import Ledger
from coterie.core.local_training.alone import statistics_of
from coterie.core.local_training.row_optimizer import Params
from coterie.core.local_training.step_count import not_counting_steps
from coterie.core.methods.bounds import TrainedModel
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import QualityReport
from coterie.core.methods.kit.model_server import ModelServer
from coterie.core.protocol.journal import Journal
from coterie.core.run.driver import FederatedRun


class TrainedModels:
    """Looks into a run; it goes on as if nobody had.

    Args:
        module: of the caller; its copies are given back.
        run: of a method for any module.
        ids: the clients' names, by number.
        method: its name.
    """

    def __init__(
        self, module: nn.Module, run: FederatedRun, ids: tuple[Hashable, ...], method: str
    ) -> None:
        self._module, self._run, self._ids, self._method = module, run, ids, method

    def server(self) -> nn.Module:
        """The server's model.

        Raises:
            UserError: the server has none.
        """
        if self._method == "local":
            raise UserError("local training has no server's model: ask for client_model(id)")
        half: ModelServer[Any] = self._run.federation.server  # type: ignore[assignment]
        state = self._run.server_state
        if half.settings.share:
            raise UserError(
                "with share= only a part of the model is the server's: ask for client_model(id)"
            )
        weights = dict(half.model(state))
        if self._method == "fedrecon":
            with self._run.on_device():
                head = half.head(state.weights)  # type: ignore[attr-defined]
            if not head:
                raise UserError(
                    "fedrecon has no head that is the server's: ask for client_model(id), or give "
                    "server_valid= to reconstruct one on"
                )
            weights |= head
        return self._filled({**weights, **self._statistics(state)}, self._module)

    def client(self, client: Hashable) -> nn.Module:
        """A client's own model, as it is measured.

        Raises:
            UserError: there is no such client, it has no model, or no round was run.
        """
        number = self._number(client)
        if not self._run.round:
            raise UserError("clients have no models yet: no round was run; call trainer.fit first")
        found = self._measured(number)
        if found is None:
            why = "keep_models is false" if self._method != "central" else "central training"
            raise UserError(f"clients have no models of their own ({why}): ask for server_model()")
        half: ModelClient[Any] = self._run.federation.client  # type: ignore[assignment]
        other = half.own_form is not half.module
        return self._filled(found, half.own_form if other else self._module)

    def _number(self, client: Hashable) -> int:
        if client in self._ids:
            return self._ids.index(client)
        known = [str(one) for one in self._ids]
        hint = nearest(str(client), known) if len(known) < 20 else f"there are {len(known)} others"
        raise UserError(f"there is no client {client!r}: {hint}")

    def _measured(self, number: int) -> Params | None:
        """The model that a client half measures as its own: every method makes it its own way."""
        run, seen = self._run, list[dict[str, Params]]()
        half: ModelClient[Any] = run.federation.client  # type: ignore[assignment]
        measured = half.measured

        def look(models: dict[str, Params], data: Any) -> QualityReport:
            seen.append(models)
            return measured(models, data)

        half.measured = look  # type: ignore[method-assign]
        try:
            with run.on_device(), not_counting_steps():
                cohort = replace(run.newest_cohort(), exchange=in_this_process(run.clients))
                cohort = replace(cohort, journal=Journal(), ledger=Ledger())
                one = cohort.part(torch.tensor([number]))
                run.federation.server.test(run.server_state, one)
        finally:
            del half.measured
        own = [models["personal"] for models in seen if "personal" in models]
        return {name: value[0] for name, value in own[0].items()} if own else None

    def _statistics(self, state: Any) -> Params:
        """Running statistics for the server's model, which are the clients': their mean."""
        form = statistics_of(self._module)
        if not form or isinstance(state, TrainedModel):
            return dict(state.statistics) if form else {}
        run = self._run
        if not run.round:
            return {}
        mine = run.store.take(run.exchange.present(run.block))
        weights = run.newest_data.lengths.to(torch.float64) * (mine.rounds > 0)
        if not bool(weights.any()):
            return {}
        return {n: _mean(mine.statistics[n], weights).to(v.dtype) for n, v in form.items()}

    def _filled(self, values: Params, form: nn.Module) -> nn.Module:
        module = copy.deepcopy(form)
        places = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in values.items():
                places[name].copy_(value)
        return module


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    """Mean over clients; of a count of batches the largest."""
    if not values.is_floating_point():
        return values.amax(0)
    return torch.tensordot(weights / weights.sum(), values.double(), 1)
