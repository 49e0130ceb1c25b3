"""PLD against computations that share nothing with it: closed forms, exact convolutions, optimistic grids."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as losses
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from sordino.budget import (
    Composed,
    FixedSizeGaussian,
    Gaussian,
    Iteration,
    Laplace,
    NonPrivate,
    PoissonGaussian,
    Pure,
    RepeatAndSelect,
    Repeated,
    ShuffledGaussian,
    UnsupportedEvent,
    pld,
    rdp,
)
from sordino.budget.events.base import NEIGHBOURS


def gaussian_delta(mu, epsilon):
    """δ(ε) of a Gaussian release with signal to noise μ (Balle & Wang 2018), in 60 digits."""
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def bisect(delta_of, delta, high):
    """The smallest ε with δ(ε) ≤ δ."""
    low, high = mpmath.mpf(0), mpmath.mpf(high)
    if delta_of(low) <= delta:
        return low
    while delta_of(high) > delta:
        high *= 2
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


@pytest.fixture(autouse=True, scope="module")
def digits():
    with mpmath.workdps(60):
        yield


@pytest.mark.parametrize("sigma", [1e-7, 1e-4, 0.01, 0.3, 1.0, 8.0, 300.0, 1e4, 1e7, 1e12])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-10, 1e-50])
def test_gaussian_is_exact_and_never_below(sigma, delta):
    exact = bisect(lambda e: gaussian_delta(1 / mpmath.mpf(sigma), e), delta, 1.0)
    found = pld.epsilon(Gaussian(sigma), delta, "zero-out")
    assert found >= exact
    assert found <= exact * (1 + 1e-8) + mpmath.mpf("1e-11")


def test_gaussians_add_up_in_one_over_sigma_squared():
    event = Composed((Repeated(Gaussian(8.0), 2), Repeated(ShuffledGaussian(10, 4.0), 25), PoissonGaussian(1.0, 2.0)))
    mu = math.sqrt(2 / 64 + 3 / 16 + 1 / 4)
    exact = bisect(lambda e: gaussian_delta(mu, e), 1e-5, 1.0)
    assert pld.epsilon(event, 1e-5, "zero-out") == pytest.approx(float(exact), rel=1e-7)


@pytest.mark.parametrize("event", [Gaussian(2.0), ShuffledGaussian(3, 2.0), PoissonGaussian(1.0, 2.0)])
def test_a_replaced_record_halves_sigma(event):
    assert pld.epsilon(event, 1e-5, "replace-one") == pytest.approx(pld.epsilon(Gaussian(1.0), 1e-5, "zero-out"))


def randomised_response_delta(epsilon, count, at):
    """Exact δ of count ε-DP releases: the optimal composition of Kairouz, Oh & Viswanath 2015, as a binomial sum."""
    epsilon = mpmath.mpf(epsilon)
    yes = 1 / (1 + mpmath.exp(-epsilon))
    total = mpmath.mpf(0)
    for k in range(count + 1):
        loss = (2 * k - count) * epsilon
        if loss > at:
            weight = mpmath.binomial(count, k) * yes**k * (1 - yes) ** (count - k)
            total += weight * (1 - mpmath.exp(at - loss))
    return total


@pytest.mark.parametrize(
    ("epsilon", "count"), [(0.1, 1), (0.1, 30), (0.1, 300), (1.0, 10), (5.0, 3), (0.01, 200), (900.0, 2)]
)
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_pure_events_reach_the_optimal_composition(epsilon, count, delta):
    exact = float(bisect(lambda e: randomised_response_delta(epsilon, count, e), delta, epsilon))
    found = pld.epsilon(Repeated(Pure(epsilon), count), delta, "zero-out")
    assert exact * (1 - 1e-12) <= found
    assert found <= exact * 1.005


def laplace_profile(scale, at):
    """δ(ε) of one Laplace release of sensitivity 1."""
    if at >= 1 / scale:
        return mpmath.mpf(0)
    if at <= -1 / scale:
        return 1 - mpmath.exp(at)
    return 1 - mpmath.exp((at - mpmath.mpf(1) / scale) / 2)


@pytest.mark.parametrize("scale", [0.01, 0.5, 2.0, 50.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_laplace_once_is_its_closed_form(scale, delta):
    exact = float(bisect(lambda e: laplace_profile(scale, e), delta, 1 / scale))
    found = pld.epsilon(Laplace(scale), delta, "zero-out")
    assert exact * (1 - 1e-12) <= found <= exact * 1.002
    assert pld.epsilon(Laplace(2 * scale), delta, "replace-one") == pytest.approx(found, rel=2e-3)


@pytest.mark.parametrize(("scale", "delta"), [(2.0, 1e-3), (1.0, 1e-5)])
def test_laplace_twice_by_quadrature(scale, delta):
    """One release's loss has atoms at ±1/b and a density between; the second's profile is closed."""
    b = mpmath.mpf(scale)

    def both(at):
        top = laplace_profile(b, at - 1 / b) / 2 + mpmath.exp(-1 / b) / 2 * laplace_profile(b, at + 1 / b)
        # under the upper measure the loss l has density e^{(l − 1/b)/2}/4 between the atoms
        middle = mpmath.quad(
            lambda loss: mpmath.exp((loss - 1 / b) / 2) / 4 * laplace_profile(b, at - loss),
            sorted({-1 / b, 1 / b, *(x for x in (at - 1 / b, at + 1 / b) if -1 / b < x < 1 / b)}),
        )
        return top + middle

    with mpmath.workdps(20):
        low, high = 0.0, 2 / scale
        for _ in range(30):
            at = (low + high) / 2
            low, high = (at, high) if both(mpmath.mpf(at)) > delta else (low, at)
    found = pld.epsilon(Repeated(Laplace(scale), 2), delta, "zero-out")
    assert low <= found * (1 + 1e-8)
    assert found <= high * 1.002


def optimistic(rate, sigma, count, delta, interval, relation="add-remove"):
    """A lower bound on ε: dp_accounting with all losses rounded down."""
    one = losses.from_gaussian_mechanism(
        sigma,
        sampling_prob=rate,
        value_discretization_interval=interval,
        pessimistic_estimate=False,
        use_connect_dots=False,
        neighboring_relation=NEIGHBOURS[relation],
    )
    return one.self_compose(count).get_epsilon_for_delta(delta)


@pytest.mark.parametrize(
    ("rate", "sigma", "count", "delta", "interval"),
    [
        (0.02, 1.5, 200, 1e-5, 1e-3),
        (0.2, 5.0, 50, 1e-5, 1e-3),
        (0.001, 0.6, 1000, 1e-5, 2e-3),
        (0.5, 10.0, 20, 1e-6, 1e-3),
        (0.01, 0.3, 100, 1e-6, 1e-2),
        (0.01, 20.0, 30, 1e-7, 1e-5),
    ],
)
@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
def test_sampled_gaussian_is_above_a_lower_bound_and_below_rdp(rate, sigma, count, delta, interval, adjacency):
    event = Repeated(PoissonGaussian(rate, sigma), count)
    found = pld.epsilon(event, delta, adjacency)
    assert optimistic(rate, sigma, count, delta, interval) <= found
    assert found <= rdp.epsilon(event, delta, adjacency)


def test_sampled_gaussian_meets_a_brute_force_grid():
    """dp_accounting alone on a grid far finer than the answer needs."""
    brute = losses.from_gaussian_mechanism(1.2, sampling_prob=0.05, value_discretization_interval=2e-4)
    expected = brute.self_compose(100).get_epsilon_for_delta(1e-5)
    assert pld.epsilon(Repeated(PoissonGaussian(0.05, 1.2), 100), 1e-5, "zero-out") == pytest.approx(expected, rel=1e-3)


def test_replace_one_sampling_meets_dp_accounting_and_its_lower_bound():
    event = Repeated(PoissonGaussian(0.1, 3.0), 50)
    grid = {"value_discretization_interval": 2e-3, "neighboring_relation": NEIGHBOURS["replace-one"]}
    expected = losses.from_gaussian_mechanism(3.0, sampling_prob=0.1, **grid).self_compose(50)
    found = pld.epsilon(event, 1e-5, "replace-one")
    assert found == pytest.approx(expected.get_epsilon_for_delta(1e-5), rel=1e-3)
    assert found >= optimistic(0.1, 3.0, 50, 1e-5, 2e-3, "replace-one")
    assert found > pld.epsilon(event, 1e-5, "zero-out")


@pytest.mark.parametrize("exponent", range(-3, 16, 3))
def test_sampled_gaussian_from_a_thousandth_to_1e15(exponent):
    """One sampled step is known in closed form (any δ below q): PLD must meet it at every size of ε."""
    rate, delta, target = 0.2, 1e-4, 10.0**exponent
    low, high = 1e-9, 1e4  # σ for this ε by bisection on the exact profile
    for _ in range(80):
        sigma = math.sqrt(low * high)
        low, high = (sigma, high) if one_step_delta(rate, sigma, target) > delta else (low, sigma)
    exact = bisect(lambda e: one_step_delta(rate, high, e), delta, target)
    found = pld.epsilon(PoissonGaussian(rate, high), delta, "zero-out")
    assert found >= exact * (1 - mpmath.mpf("1e-9"))
    assert found <= exact * mpmath.mpf("1.002")


def one_step_delta(rate, sigma, epsilon):
    rate, sigma, epsilon = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.mpf(epsilon)
    cut = mpmath.mpf(1) / 2 + sigma**2 * mpmath.log1p(mpmath.expm1(epsilon) / rate)
    above = mpmath.ncdf(-cut / sigma)
    remove = (1 - rate) * above + rate * mpmath.ncdf((1 - cut) / sigma) - mpmath.exp(epsilon) * above
    reverse = mpmath.expm1(-epsilon) / rate
    if reverse <= -1:
        return remove
    cut = mpmath.mpf(1) / 2 + sigma**2 * mpmath.log1p(reverse)
    below = mpmath.ncdf(cut / sigma)
    add = below - mpmath.exp(epsilon) * ((1 - rate) * below + rate * mpmath.ncdf((cut - 1) / sigma))
    return max(remove, add)


@settings(max_examples=6, deadline=None)
@given(
    st.floats(1e-4, 0.9),
    st.floats(0.3, 30),
    st.integers(1, 500),
    st.sampled_from([1e-3, 1e-5, 1e-8]),
)
def test_pld_never_exceeds_rdp_by_more_than_its_grid(rate, sigma, count, delta):
    event = Repeated(PoissonGaussian(rate, sigma), count)
    assert pld.epsilon(event, delta, "zero-out") <= rdp.epsilon(event, delta, "zero-out") * 1.001 + 1e-6


def direct_power(probabilities, count):
    """The convolution by sums of products of non-negative numbers: no cancellation, so the tails are exact too."""
    result, base = None, probabilities
    while count:
        if count & 1:
            result = base if result is None else np.convolve(result, base)
        count >>= 1
        if count:
            base = np.convolve(base, base)
    return result


@pytest.mark.parametrize(
    ("rate", "sigma", "interval", "count"), [(0.1, 1.0, 0.25, 256), (0.02, 1.5, 0.125, 400), (0.01, 0.6, 0.5, 300)]
)
def test_the_slack_set_aside_for_the_fft_covers_its_error_many_times(rate, sigma, interval, count):
    for single in PoissonGaussian(rate, sigma).losses("zero-out", interval):
        exact = direct_power(single.probabilities, count)
        at = (np.arange(len(exact)) + single.lowest * count) * interval + single.offset * count
        escaped = -math.expm1(count * math.log1p(-single.infinite))
        composed = single.repeated(count, 10**7)
        for epsilon in np.linspace(0, at[-1], 30)[:-1]:
            beyond = at > epsilon
            truth = escaped - np.dot(np.expm1(epsilon - at[beyond]), exact[beyond])
            assert truth - composed.delta(epsilon) <= pld._FFT_ERROR * count / 16


@pytest.mark.parametrize("times", [1.02, 1.5, 10])
def test_near_the_smallest_delta_the_answer_still_bounds(times):
    """δ barely above what is set aside: the answer may be loose, never below the exact one."""
    epsilon, count = 0.2, 64
    delta = times * pld._FFT_ERROR * count
    found = pld.epsilon(Repeated(Pure(epsilon), count), delta, "zero-out")
    exact = bisect(lambda e: randomised_response_delta(epsilon, count, e), delta, epsilon)
    assert found is not None
    assert float(exact) <= found


def test_below_that_delta_there_is_no_answer():
    event = Repeated(PoissonGaussian(0.01, 1.0), 1000)
    assert pld.epsilon(event, 1e-12, "zero-out") is None
    assert pld.epsilon(event, 1e-300, "zero-out") is None


def test_more_steps_than_memory_holds_give_no_answer():
    assert pld.epsilon(Repeated(Pure(0.3), 10**12), 1e-3, "zero-out") is None


def test_nothing_costs_nothing_and_the_non_private_everything():
    assert pld.epsilon(Composed(()), 1e-5, "zero-out") == 0
    assert pld.epsilon(Repeated(PoissonGaussian(0.1, 1.0), 0), 1e-5, "zero-out") == 0
    assert pld.epsilon(Composed((Gaussian(1.0), NonPrivate())), 1e-5, "zero-out") == math.inf


@pytest.mark.parametrize(
    "event", [FixedSizeGaussian(10, 5, 1.0), Iteration(1, 1, 1.0), RepeatAndSelect(Gaussian(1.0), 2.0)]
)
def test_events_without_a_loss_distribution_are_refused(event):
    with pytest.raises(UnsupportedEvent):
        pld.epsilon(Composed((Gaussian(1.0), event)), 1e-5, "replace-one")


def test_shuffled_batches_are_refused_under_add_remove():
    with pytest.raises(UnsupportedEvent, match="order"):
        pld.epsilon(ShuffledGaussian(10, 1.0), 1e-5, "add-remove")


def test_composition_of_different_kinds_is_above_each_and_below_their_sum():
    parts = [Repeated(PoissonGaussian(0.02, 1.0), 300), Repeated(Laplace(10.0), 5), Gaussian(4.0), Pure(0.2)]
    alone = [pld.epsilon(part, 1e-6 / 4, "zero-out") for part in parts]
    together = pld.epsilon(Composed(tuple(parts)), 1e-6, "zero-out")
    assert max(pld.epsilon(part, 1e-6, "zero-out") for part in parts) < together < sum(alone)


def test_rough_is_valid_and_near():
    event = Repeated(PoissonGaussian(0.02, 1.5), 500)
    exact = pld.epsilon(event, 1e-5, "zero-out")
    assert exact * (1 - 1e-9) <= pld.rough_epsilon(event, 1e-5, "zero-out") <= exact * 1.02
    assert pld.rough_epsilon(event, 1e-14, "zero-out") is None  # and not zero


@pytest.mark.parametrize(
    "event",
    [
        Repeated(PoissonGaussian(1e-12, 1e-30), 1000),
        Repeated(PoissonGaussian(0.5, 1e30), 1000),
        Repeated(PoissonGaussian(1 - 1e-15, 0.5), 100),
        Repeated(PoissonGaussian(1e-30, 1.0), 10),
        Repeated(Laplace(1e-30), 100),
        Repeated(Laplace(1e15), 100),
        Repeated(Pure(1e30), 3),
        Repeated(Pure(1e-30), 3),
        Repeated(Gaussian(1e-30), 2**53),
    ],
)
@pytest.mark.parametrize("delta", [0.5, 1e-5])
def test_extreme_parameters_neither_crash_nor_hang(event, delta):
    try:
        found = pld.epsilon(event, delta, "zero-out")
    except UnsupportedEvent:
        return
    assert found is None or found >= 0


def test_tiny_sampling_rates_cost_next_to_nothing():
    event = Repeated(PoissonGaussian(1e-9, 1.0), 10)
    assert 0 <= pld.epsilon(event, 1e-5, "zero-out") < 1e-6


def test_an_exact_rational_check_of_the_discretised_randomised_response():
    """Two pure releases on a grid that holds ε: the profile is a sum of three terms."""
    step = math.log(3)  # e^ε = 3
    yes, no = Fraction(3, 4), Fraction(1, 4)
    delta_at_zero = yes**2 * (1 - Fraction(1, 9)) + 0 * no
    assert randomised_response_delta(step, 2, 0) == pytest.approx(float(delta_at_zero), rel=1e-12)
    found = pld.epsilon(Repeated(Pure(step), 2), float(delta_at_zero) * 1.0001, "zero-out")
    assert 0 <= found < 1e-3


def test_the_normal_distribution_of_the_tests_agrees_with_scipy():
    assert float(mpmath.ncdf(-3)) == pytest.approx(ndtr(-3), rel=1e-12)
