"""Sticks with a discount (Pitman–Yor) and with a Gamma prior of their concentration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betaln, digamma, gammaln, logsumexp

from globular.model.dirichlet import StickPrior, Sticks, sticks_of_groups
from reference import infinite as reference

COUNTS = np.array([40.0, 11.0, 7.0, 0.5])


def test_no_discount_gives_the_same_bits() -> None:
    plain, zero = (
        Sticks.from_counts((1.0, 0.7), COUNTS, 0.3),
        Sticks.from_counts(StickPrior(1.0, 0.7, 0.0), COUNTS, 0.3),
    )
    for name in ("first", "second", "log_weights", "log_rests", "weights"):
        assert getattr(plain, name).tobytes() == getattr(zero, name).tobytes()
    assert plain.divergences().tobytes() == zero.divergences().tobytes()
    assert (plain.log_tail, plain.remainder, plain.log_evidence()) == (
        zero.log_tail,
        zero.remainder,
        zero.log_evidence(),
    )
    assert zero.shared_divergence == 0.0


@pytest.mark.parametrize("discount", [1e-9, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("closed", [False, True])
def test_discounted_sticks_equation_by_equation(discount: float, closed: bool) -> None:
    sticks = Sticks.from_counts(StickPrior(1.0, 0.7, discount), COUNTS, 0.3, closed=closed)
    number = np.arange(1, 5)
    a, b = np.full(4, 1 - discount), 0.7 + discount * number
    phi = np.column_stack([a + COUNTS, b + 0.3 + COUNTS.sum() - np.cumsum(COUNTS)])
    np.testing.assert_allclose(np.column_stack([sticks.first, sticks.second]), phi)
    expected = [reference.beta_divergence(own, prior) for own, prior in zip(phi, zip(a, b, strict=True), strict=True)]
    evidence = betaln(*phi.T) - betaln(a, b)
    if closed:
        expected[-1], evidence[-1] = 0.0, 0.0
    np.testing.assert_allclose(sticks.divergences(), expected, atol=1e-12)
    assert sticks.log_evidence() == pytest.approx(evidence.sum())
    np.testing.assert_allclose(sticks.held, COUNTS)
    assert sticks.weights.sum() + sticks.remainder == pytest.approx(1.0)


@pytest.mark.parametrize("discount", [0.05, 0.3, 0.5, 0.6])
def test_the_tail_is_the_sum_of_its_terms(discount: float) -> None:
    sticks = Sticks.from_counts(StickPrior(1.0, 0.7, discount), COUNTS, 0.3)
    number = np.arange(5, 4_000_000)
    a, b = 1 - discount, 0.7 + discount * number
    rests = digamma(b) - digamma(a + b)
    terms = digamma(a) - digamma(a + b) + np.append(0.0, np.cumsum(rests)[:-1])
    assert sticks.log_tail == pytest.approx(sticks.log_rests.sum() + logsumexp(terms), abs=1e-3)


def test_a_small_discount_comes_to_none() -> None:
    none, some = (Sticks.from_counts(StickPrior(1.0, 2.0, discount), COUNTS, 0.3) for discount in (0.0, 1e-7))
    np.testing.assert_allclose(some.log_weights, none.log_weights, atol=1e-5)
    assert some.log_tail == pytest.approx(none.log_tail, abs=1e-4)


def test_sizes_that_follow_a_power_speak_for_a_discount() -> None:
    falling = {"power": 500.0 * np.arange(1, 60) ** -1.5, "exponential": 500.0 * 0.6 ** np.arange(1, 12)}
    for law, counts in falling.items():
        none, some = (Sticks.from_counts(StickPrior(1.0, 1.0, d), counts).log_evidence() for d in (0.0, 0.5))
        assert (some > none) == (law == "power")


def test_sticks_behind_others_are_those_of_the_whole() -> None:
    prior = StickPrior(1.0, 0.7, 0.4)
    whole, rest = Sticks.from_counts(prior, COUNTS, 0.3), Sticks.from_counts(prior.behind(2), COUNTS[2:], 0.3)
    np.testing.assert_array_equal(rest.first, whole.first[2:])
    np.testing.assert_allclose(rest.divergences(), whole.divergences()[2:])
    assert rest.log_tail + whole.log_rests[:2].sum() == pytest.approx(whole.log_tail)


@given(
    st.lists(st.floats(0, 1e5), min_size=2, max_size=8), st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0, 10),
    st.booleans(),
)  # fmt: skip
def test_the_posterior_of_a_concentration_is_the_best_one(counts, s, r, tail, closed):
    """No other Gamma distribution, with the sticks that go with its mean, has a smaller free energy of the sticks."""
    counts_ = np.array(counts)
    n = len(counts) - closed
    beyond = tail + np.append(np.cumsum(counts_[:0:-1])[::-1], 0.0)

    def free_energy(shape: float, rate: float) -> float:
        """KL(q_α ‖ p_α) + Σ E_α[KL(q_{v_i} ‖ p_{v_i})] − Σ_i counts_i E[log π_i], without the tail's own part."""
        mean, log_mean = shape / rate, digamma(shape) - np.log(rate)
        a, b = 1.0 + counts_[:n], mean + beyond[:n]
        of_alpha = (shape - s) * digamma(shape) - gammaln(shape) + gammaln(s)
        of_alpha += s * np.log(rate / r) + shape * (r / rate - 1.0)
        length, rest = digamma(a) - digamma(a + b), digamma(b) - digamma(a + b)
        entropy = (a - 1) * length + (b - 1) * rest - betaln(a, b)
        prior = log_mean + (mean - 1.0) * rest
        return float(of_alpha + (entropy - prior).sum() - (counts_[:n] * length + beyond[:n] * rest).sum())

    sticks = Sticks.from_counts(StickPrior(gamma=(s, r)), counts_, tail, closed=closed)
    shape, rate = sticks.concentration
    best = free_energy(shape, rate)
    for more, of_rate in ((1.01, 1.0), (0.99, 1.0), (1.0, 1.01), (1.0, 0.99), (1.05, 1.05), (0.9, 0.95)):
        assert free_energy(more * shape, of_rate * rate) >= best - 1e-9 * (1 + abs(best))
    own = sticks.divergences().sum() + sticks.shared_divergence
    held = (counts_ * sticks.log_weights).sum() + tail * sticks.log_rests[:n].sum() * (not closed)
    if not closed:
        assert own - held == pytest.approx(best, rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("discount", [0.0, 0.3])
def test_sticks_of_groups_are_those_of_each_by_itself(discount: float) -> None:
    random = np.random.default_rng(0)
    bounds, before, behind = np.array([0, 1, 4, 6]), np.array([2, 0, 5]), np.array([3.0, 0.0, 40.0])
    counts, alpha = random.gamma(2.0, 10.0, size=6), StickPrior(1.0, 1.5, discount)
    found = sticks_of_groups(alpha, counts, bounds, before, behind)
    for g in range(3):
        some = slice(bounds[g], bounds[g + 1])
        sticks = Sticks.from_counts(alpha.behind(int(before[g])), counts[some], behind[g])
        np.testing.assert_allclose(found.log_weights[some], sticks.log_weights, rtol=1e-12)
        wanted = sticks.divergences().sum() - behind[g] * sticks.log_rests.sum()
        np.testing.assert_allclose(found.divergences[g], wanted, rtol=1e-12)


def test_what_rounding_leaves_behind_a_group_is_nothing() -> None:
    """Sums of 10¹⁵ rows that are subtracted may miss nothing by a row or two."""
    one = np.array([0]), np.array([0.0])
    found = sticks_of_groups(StickPrior(1.0, 1.0), np.array([6e14]), np.array([0, 1]), one[0], np.array([-1.0]))
    exact = sticks_of_groups(StickPrior(1.0, 1.0), np.array([6e14]), np.array([0, 1]), *one)
    np.testing.assert_allclose(found.log_weights, exact.log_weights, rtol=1e-12)
    assert np.isfinite(found.divergences).all()
