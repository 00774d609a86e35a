"""scikit-learn's tests of Bayesian Gaussian mixtures, with ours."""

import pytest

import globular
from compatibility.conftest import BAYESIAN
from compatibility.swapped import swapped

# They stop many fits after an iteration or two, and leave the warning of that, which is scikit-learn's too, alone.
pytestmark = pytest.mark.filterwarnings("ignore:Best performing init:sklearn.exceptions.ConvergenceWarning")
OURS = {"BayesianGaussianMixture": globular.BayesianGaussianMixture}
globals().update(swapped("sklearn.mixture.tests.test_bayesian_mixture", "sklearn.mixture", OURS))


def test_all_but_one_pass() -> None:
    assert len(BAYESIAN) == 1
