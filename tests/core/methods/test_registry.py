"""The registry: every method of the core from one set of settings, for any module and data."""

from types import SimpleNamespace

import pytest
import torch
from tests.core.methods.labelled_clients import Net, built, close, run, split

from coterie.core.errors import UserError
from coterie.core.methods import registry
from coterie.core.methods.registry import METHODS
from coterie.core.methods.settings.any_module import (
    CentralOptions,
    DapFLOptions,
    DittoOptions,
    FedALAOptions,
    FedAMPOptions,
    FedDynOptions,
    FedProxOptions,
    FedReconOptions,
    FedRODOptions,
    PFedMeOptions,
    ScaffoldOptions,
)

SECTIONS = SimpleNamespace(
    fedprox=FedProxOptions(),
    scaffold=ScaffoldOptions(),
    feddyn=FedDynOptions(),
    dap_fl=DapFLOptions(),
    fedrecon=FedReconOptions(),
    pfedme=PFedMeOptions(),
    ditto=DittoOptions(),
    fedala=FedALAOptions(),
    fedrod=FedRODOptions(),
    fedamp=FedAMPOptions(),
    central=CentralOptions(),
)
COMMON = {"lr": 0.05, "epochs": 1, "batch_size": 3, "rounds": 2}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_and_takes_batches_as_the_module_wants_them(name):
    data = split([5, 0, 4])
    settings = registry.settings_of(name, COMMON, SECTIONS, data.lengths)
    seen = []

    def as_batch(samples):
        seen.append(set(samples))
        return samples

    def both(as_batch=None):
        given = (name, lambda: built(Net), settings)
        server = registry.server_half(*given, pooled=data.train, as_batch=as_batch)
        return run(server, registry.client_half(*given, as_batch), data, 1)

    plain = both()
    close(both(as_batch).state.weights, plain.state.weights)
    assert seen
    assert all(fields == {"x", "y"} for fields in seen)
    moved = [not torch.equal(plain.state.weights[n], w) for n, w in built(Net).state_dict().items()]
    assert any(moved) == (name != "local")  # the server's model stays where nothing is uploaded


def test_a_check_by_the_clients_sizes_names_the_section():
    sections = SimpleNamespace(feddyn=FedDynOptions(alpha=1.0))
    lengths = torch.tensor([1, 1000])
    registry.settings_of("feddyn", COMMON, sections)
    with pytest.raises(UserError, match=r"^'lr' times 'feddyn\.alpha' is .* with 1 samples"):
        registry.settings_of("feddyn", COMMON, sections, lengths)


def test_own_parameters_win():
    own = SimpleNamespace(pfedme=PFedMeOptions(lr=0.007))
    assert registry.settings_of("pfedme", COMMON, own).lr == 0.007
    assert registry.settings_of("fedavg", COMMON, own).lr == 0.05
