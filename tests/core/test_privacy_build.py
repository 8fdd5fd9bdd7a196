"""Settings to middleware: what is built, and which contradictions are named."""

import warnings
from dataclasses import replace

import pytest
from tests.core.relays import Organisation

from coterie.core.errors import UserError
from coterie.core.privacy.build import middleware
from coterie.core.privacy.noise import Clip, GaussianNoise, LaplaceNoise
from coterie.core.settings.sections import PrivacySettings

STEPS = Organisation.steps()
PLAIN = PrivacySettings()
LAPLACE = PrivacySettings(noise="laplace", scale=0.1, clip=2.0, uploads="dense")


def test_what_is_built() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert middleware(PLAIN, STEPS) == ()
        assert middleware(PrivacySettings(clip=3.0), STEPS) == (Clip(3.0, 2),)
        assert middleware(LAPLACE, STEPS) == (Clip(2.0, 1), LaplaceNoise(0.1))
        gaussian = replace(LAPLACE, noise="gaussian")
        assert middleware(gaussian, STEPS) == (Clip(2.0, 2), GaussianNoise(0.1))


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_noise_without_a_clip_warns(noise: str) -> None:
    with pytest.warns(UserWarning, match=f"{noise} noise without privacy.clip gives no privacy"):
        (layer,) = middleware(replace(LAPLACE, noise=noise, clip=None), STEPS)
    assert layer.scale == 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": 0.0}, r"laplace noise needs a positive privacy\.scale, not 0\.0"),
        ({"scale": float("nan")}, r"laplace noise needs a positive privacy\.scale"),
        ({"noise": "none"}, r"privacy\.scale 0\.1 has no effect without noise"),
        ({"noise": "gausian"}, "did you mean 'gaussian'"),
        ({"clip": 0.0}, r"privacy\.clip' must be above 0"),
        ({"clip": float("inf")}, r"privacy\.clip"),
        ({"delta": 0.0}, r"privacy\.delta' must be above 0"),
        ({"delta": 1.0}, r"privacy\.delta"),
        ({"uploads": "touched"}, "would still show which rows"),
        ({"uploads": "padded"}, "padded uploads need padded_rows"),
        ({"steps": ("residul",)}, r"no step is called 'residul': did you mean 'residual'\?"),
        ({"steps": ("fit", "update")}, "step 'update' uploads nothing.*known: fit, residual"),
        ({"clip": None, "clip_by": "entry"}, r"privacy\.clip_by' has no effect without a bound"),
        (
            {"clip": None, "noise": "none", "scale": 0.0, "steps": ("fit",)},
            r"privacy\.steps' has no effect without noise",
        ),
    ],
)
def test_contradictions_are_named_in_one_line(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        middleware(replace(LAPLACE, **change), STEPS)
    assert "\n" not in str(error.value)
