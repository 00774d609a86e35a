"""Bessel functions of large orders and the concentration of directions, against integrals along the sphere."""

import numpy as np
import pytest
from scipy.special import gammaln, ive

from reference import linear

from globular.model.exponential.directions import (  # isort: skip
    LARGEST_CONCENTRATION, UNIFORM_UP_TO, bessel_ratio, concentrations_of, log_normalisers, log_scaled_bessel,
)  # fmt: skip

SIZES = [1e-6, 0.1, 1.0, 7.0, 60.0, 300.0, 1500.0, 20_000.0]


@pytest.mark.parametrize("D", [2, 3, 10, 50, 784, 3000])
def test_normalisers_are_integrals_over_the_sphere(D: int) -> None:
    found = log_normalisers(np.array(SIZES), D)
    expected = [linear.log_sphere_integral(D, kappa) for kappa in SIZES]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("D", [2, 3, 10, 50, 784, 3000])
def test_ratios_are_mean_cosines(D: int) -> None:
    found = bessel_ratio(0.5 * D - 1, np.array(SIZES))
    np.testing.assert_allclose(found, [linear.mean_cosine(D, kappa) for kappa in SIZES], rtol=1e-7)


@pytest.mark.parametrize("D", [1, 2, 3, 50, 784, 3000, 20_000])
def test_concentrations_undo_ratios(D: int) -> None:
    kappa = np.logspace(-4, 6, 41)
    lengths = bessel_ratio(0.5 * D - 1, kappa)
    known = lengths < 1.0 - 1e-9  # beyond, a length says nothing about κ
    found = concentrations_of(lengths[known], D, LARGEST_CONCENTRATION)
    np.testing.assert_allclose(found, kappa[known], rtol=1e-5)
    np.testing.assert_allclose(bessel_ratio(0.5 * D - 1, found), lengths[known], rtol=1e-9)


@pytest.mark.parametrize("D", [1, 2, 784])
def test_concentrations_at_their_limits(D: int) -> None:
    found = concentrations_of(np.array([0.0, 1.0, 1.5]), D, 1e6)
    np.testing.assert_array_equal(found, [0.0, 1e6, 1e6])


@pytest.mark.parametrize("order", [-0.5, 0.0, 0.5, 24.0, 391.0, 1499.0])
def test_every_way_to_a_bessel_function_meets_the_next(order: float) -> None:
    """The series, the expansions and SciPy's function agree wherever the latter has a say."""
    kappa = np.logspace(-3, 8, 200)
    with np.errstate(divide="ignore"):
        theirs = np.log(ive(order, kappa))
    known = np.isfinite(theirs) & (theirs > -600)
    ours = log_scaled_bessel(order, kappa)
    np.testing.assert_allclose(ours[known], theirs[known], rtol=1e-10, atol=1e-10)
    assert (np.abs(np.diff(ours, 2)) < 50).all()  # no jump between two ways


def test_a_direction_of_one_column_is_a_sign() -> None:
    kappa = np.array([0.3, 4.0, 40.0])
    np.testing.assert_allclose(log_normalisers(kappa, 1), np.log(2 * np.cosh(kappa)), rtol=1e-12)
    np.testing.assert_allclose(bessel_ratio(-0.5, kappa), np.tanh(kappa), rtol=1e-12)


@pytest.mark.parametrize("D", [2, 50, 3000])
def test_no_concentration_is_the_uniform_distribution(D: int) -> None:
    surface = np.log(2) + 0.5 * D * np.log(np.pi) - gammaln(0.5 * D)
    found = log_normalisers(np.array([0.0, UNIFORM_UP_TO, 2 * UNIFORM_UP_TO]), D)
    np.testing.assert_allclose(found, surface, rtol=1e-12, atol=1e-12)
