"""The budget counts what clients release, an upload of parameters each, not rounds."""

from types import SimpleNamespace

import pytest
import torch
from tests.core.linear_client import MEASURE, UPDATE, Error, Intercept, LinearClient, Slope
from tests.in_process import OpenCohort, cohort_in_process
from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.errors import UserError
from coterie.core.federation.exchange import Exchange
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.privacy.build import middleware
from coterie.core.protocol.journal import Journal, Release
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key
from coterie.core.training.callbacks.notes import PrivacyBudget

SETTINGS = PrivacySettings(clip=1.0, noise="laplace", scale=4.0)
ONE = 2 * 1.0 / 4.0  # ε of an upload: any two are 2 C apart in L1, over λ
DOWN = Slope({"linear.w": torch.zeros(3)})


class Measuring(LinearClient):
    @MEASURE
    def measure(
        self, down: Slope, mine: Intercept, data: SampleData, key: Key
    ) -> tuple[Error, None]:
        return Error(mine.value), None


def cohort(journal: Journal, round_: int, store: PrivateStore, clients: int = 3) -> OpenCohort:
    ids = torch.arange(clients)
    samples: dict[str, Tensor] = {"x": torch.ones(2 * clients, 3), "y": torch.ones(2 * clients)}
    data = SampleData(ids, samples, 2 * torch.arange(clients + 1))
    found = cohort_in_process(
        Measuring(),
        data,
        store,
        Key.from_seed(0),
        (0, round_),
        Ledger(),
        journal,
        middleware=middleware(SETTINGS, Measuring.steps()),
    )
    found.enrol()
    return found


def test_rounds_of_two_uploads_of_one_and_of_none() -> None:
    budget, journal, store = PrivacyBudget(SETTINGS), Journal(), PrivateStore()
    spent = 0.0
    for round_, uploads in enumerate((2, 1, 0, 2)):
        journal.clear()
        part = cohort(journal, round_, store)
        for _ in range(uploads):
            part.ask(UPDATE, DOWN)
        part.ask(MEASURE, DOWN)  # a report: measurements have no noise, and no guarantee
        budget.note(SimpleNamespace(journal=journal, exchange=Exchange))  # type: ignore[arg-type]
        spent += uploads * ONE
        assert journal.scalars["privacy/epsilon"] == pytest.approx(spent)


def test_asking_nobody_costs_nothing() -> None:
    journal = Journal()
    cohort(journal, 0, PrivateStore(), clients=0).ask(UPDATE, DOWN)
    assert journal.releases == []


@pytest.mark.parametrize("fraction", [0.3, 0.5, 1.0])
def test_a_sample_is_no_cheaper_than_everybody(fraction: float) -> None:
    """The server knows whom it asked: who is in the sample pays the whole price."""
    journal, store = Journal(), PrivateStore()
    budget = PrivacyBudget(SETTINGS)
    everybody = cohort(journal, 0, store, clients=10)
    part = everybody.sample(fraction, Key.from_seed(3))
    assert len(part) == round(10 * fraction)
    part.ask(UPDATE, DOWN)
    budget.note(SimpleNamespace(journal=journal, exchange=Exchange))  # type: ignore[arg-type]
    assert journal.scalars["privacy/epsilon"] == pytest.approx(ONE)


def released(asked: list[int], heard: list[int] | None = None, among: int = 10) -> Release:
    answered = asked if heard is None else heard
    return Release("update", 1, torch.tensor(asked), torch.tensor(answered).long(), among)


def spent(budget: PrivacyBudget, *releases: Release, starts: int = 0) -> float:
    """ε after one more round, of a server that was started so often."""
    journal, exchange = Journal(releases=list(releases)), SimpleNamespace(starts=starts)
    budget.note(SimpleNamespace(journal=journal, exchange=exchange))  # type: ignore[arg-type]
    return journal.scalars["privacy/epsilon"]


def test_who_took_part_most_is_told_of() -> None:
    """Not one who took part always: of three rounds client 5 is in two, the others in one."""
    budget = PrivacyBudget(SETTINGS)
    found = [spent(budget, released(ids)) for ids in ([5, 2], [9, 2**40], [5, 7])]
    assert found == pytest.approx([ONE, ONE, 2 * ONE])


def test_who_was_asked_and_came_too_late_has_released_all_the_same() -> None:
    budget = PrivacyBudget(SETTINGS)
    assert spent(budget, released([3, 4], heard=[4])) == pytest.approx(ONE)
    assert spent(budget, released([3], heard=[])) == pytest.approx(2 * ONE)


def test_the_budget_goes_on_after_a_resume() -> None:
    budget, later = PrivacyBudget(SETTINGS), PrivacyBudget(SETTINGS)
    spent(budget, *[released([1, 3])] * 3)
    later.load_state_dict(budget.state_dict())
    assert spent(later, *[released([3])] * 3) == pytest.approx(6 * ONE)


def test_a_run_elsewhere_that_was_cut_off_counts_the_round_that_was_lost() -> None:
    budget, later = (PrivacyBudget(SETTINGS, elsewhere=True) for _ in range(2))
    assert spent(budget, released([1])) == pytest.approx(ONE)
    later.load_state_dict(budget.state_dict())
    assert spent(later, released([1])) == pytest.approx(3 * ONE)
    assert spent(later, released([1])) == pytest.approx(4 * ONE)


def test_a_server_that_was_started_three_times_counts_each() -> None:
    """Killed twice in one round: three tries may have got answers with noise of their own."""
    budget, later = (PrivacyBudget(SETTINGS, elsewhere=True) for _ in range(2))
    assert spent(budget, released([1]), starts=1) == pytest.approx(ONE)
    later.load_state_dict(budget.state_dict())
    assert spent(later, released([1]), starts=3) == pytest.approx(4 * ONE)
    assert spent(later, released([1]), starts=3) == pytest.approx(5 * ONE)


def test_a_budget_of_another_version_is_refused() -> None:
    budget = PrivacyBudget(SETTINGS)
    with pytest.raises(UserError, match=r"PrivacyBudget: 'released'.*another version.*--run\.name"):
        budget.load_state_dict({"steps": 3})
