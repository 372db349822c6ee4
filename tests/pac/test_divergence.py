"""φ against arbitrary precision, in both of its forms."""

import mpmath
import numpy as np
import pytest

from reticent.pac.divergence import phi, phi_of_array

NEAR_AND_FAR = np.concatenate([np.logspace(-300, -13, 20), np.logspace(-12, 3, 80), [0.0999999, 0.1, 0.1000001]])
POINTS = [-1.0, 0.0, *NEAR_AND_FAR, *(-NEAR_AND_FAR[NEAR_AND_FAR < 1.0])]


def exact(x):
    with mpmath.workdps(700):
        x = mpmath.mpf(float(x))
        return float((1 + x) * mpmath.log1p(x) - x) if x > -1 else 1.0


@pytest.mark.parametrize("form", [lambda x: [phi(float(value)) for value in x], phi_of_array], ids=["scalar", "array"])
def test_phi_is_accurate_however_small_its_argument(form):
    expected = [exact(x) for x in POINTS]
    np.testing.assert_allclose(form(np.array(POINTS)), expected, rtol=1e-13, atol=0.0)
    assert min(form(np.array(POINTS))) >= 0.0
