"""ε between a bound from below and one from above, neither of which shares code with the one that is charged."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as losses
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from sordino.budget import Composed, Gaussian, Laplace, Ledger, PoissonGaussian, Pure, Repeated, cost, rdp
from sordino.budget.events.base import NEIGHBOURS


def logarithmic(low, high):
    return st.floats(math.log(low), math.log(high)).map(math.exp)


leaves = st.one_of(
    st.builds(PoissonGaussian, logarithmic(1e-3, 0.99), logarithmic(0.5, 20)),
    st.builds(Gaussian, logarithmic(1, 50)),
    st.builds(Laplace, logarithmic(1, 50)),
    st.builds(Pure, logarithmic(0.01, 1)),
)
repeated = st.builds(Repeated, leaves, st.integers(1, 8))
deltas = st.sampled_from([1e-2, 1e-5, 1e-7])


def by_dp_accounting(events, delta, interval, pessimistic):
    """dp_accounting alone: every loss rounded up, or every loss rounded down."""
    grid = {
        "value_discretization_interval": interval,
        "pessimistic_estimate": pessimistic,
        "use_connect_dots": pessimistic,
    }
    composed = None
    for event in events:
        match event.event:
            case PoissonGaussian(rate, sigma):
                one = losses.from_gaussian_mechanism(sigma, sampling_prob=rate, **grid)
            case Gaussian(sigma):
                one = losses.from_gaussian_mechanism(sigma, **grid)
            case Laplace(scale):
                one = losses.from_laplace_mechanism(scale, **grid)
            case Pure(epsilon):
                one = losses.from_randomized_response(
                    2 / (1 + math.exp(epsilon)),
                    2,
                    pessimistic_estimate=pessimistic,
                    value_discretization_interval=interval,
                )
        one = one.self_compose(event.count) if event.count > 1 else one
        composed = one if composed is None else composed.compose(one)
    return composed.get_epsilon_for_delta(delta)


def bracket(events, delta, found):
    """A lower and an upper bound that are some percent apart."""
    steps = sum(event.count for event in events)
    interval = max(found, 1e-3) / (10 * steps + 50)
    return by_dp_accounting(events, delta, interval, False), by_dp_accounting(events, delta, interval, True)


# Every example takes a while, so failing ones are shown as they were drawn.
AS_DRAWN = (Phase.explicit, Phase.generate)


@settings(max_examples=5, deadline=None, phases=AS_DRAWN)
@given(st.lists(repeated, min_size=1, max_size=3), deltas)
def test_drawn_events_lie_between_an_optimistic_and_a_pessimistic_composition(events, delta):
    found = cost(Composed(tuple(events)), delta).epsilon
    lower, upper = bracket(events, delta, found)
    assert lower <= found * (1 + 1e-9) + 1e-12
    assert found <= upper * 1.005 + 1e-6


@settings(max_examples=2, deadline=None, phases=AS_DRAWN)
@given(st.lists(repeated, min_size=1, max_size=3), deltas)
def test_the_ledgers_total_is_that_of_an_independent_composition(events, delta):
    planned = [(event, f"event {number}") for number, event in enumerate(events)]
    ledger = Ledger(None, delta, planned=planned)
    for event, what in planned:
        ledger.spend(event, what)
    lower, upper = bracket(events, delta, ledger.epsilon())
    assert lower <= ledger.epsilon() * (1 + 1e-9) + 1e-12
    assert ledger.epsilon() <= upper * 1.005 + 1e-6


@settings(max_examples=8, deadline=None, phases=AS_DRAWN)
@given(st.lists(repeated, min_size=2, max_size=4), deltas)
def test_the_filters_total_is_that_of_an_independent_accountant(events, delta):
    ledger = Ledger(None, delta)
    for number, event in enumerate(events):
        ledger.spend(event, f"event {number}")
    order = ledger.terms.filter_order
    accountant = dp_accounting.rdp.RdpAccountant([order], NEIGHBOURS["zero-out"])
    pure = pure_rdp = 0.0
    for event in events:
        match event.event:
            case PoissonGaussian(rate, sigma):
                one = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
                pure = math.inf
            case Gaussian(sigma):
                one, pure = dp_accounting.GaussianDpEvent(sigma), math.inf
            case Laplace(scale):
                one, pure = dp_accounting.LaplaceDpEvent(scale), pure + event.count / scale
            case Pure(epsilon):
                yes, no = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))  # randomised response
                moment = yes**order * no ** (1 - order) + no**order * yes ** (1 - order)
                one, pure = dp_accounting.NoOpDpEvent(), pure + event.count * epsilon
                pure_rdp += event.count * math.log(moment) / (order - 1)
        accountant.compose(one, event.count)
    total = max(0.0, accountant._rdp[0] + pure_rdp + rdp.conversion_cost(order, delta))
    assert ledger.epsilon() == pytest.approx(min(total, pure), rel=1e-6, abs=1e-9)


def one_step_delta(rate, sigma, epsilon):
    rate, sigma, epsilon = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.mpf(epsilon)

    def upper_tail(cut, mean):
        return mpmath.ncdf((mean - cut) / sigma)

    cut = mpmath.mpf(1) / 2 + sigma**2 * mpmath.log1p(mpmath.expm1(epsilon) / rate)
    remove = rate * upper_tail(cut, 1) + (1 - rate - mpmath.exp(epsilon)) * upper_tail(cut, 0)
    inner = mpmath.expm1(-epsilon) / rate
    if inner <= -1:
        return remove
    cut = mpmath.mpf(1) / 2 + sigma**2 * mpmath.log1p(inner)
    add = (1 - mpmath.exp(epsilon) * (1 - rate)) * (1 - upper_tail(cut, 0))
    return max(remove, add - mpmath.exp(epsilon) * rate * (1 - upper_tail(cut, 1)))


@settings(max_examples=15, deadline=None, phases=AS_DRAWN)
@given(logarithmic(1e-6, 0.999), logarithmic(1e-3, 1e3), st.sampled_from([0.5, 1e-3, 1e-6, 1e-9]))
def test_one_step_with_any_noise_is_its_closed_form(rate, sigma, delta):
    """δ at the ε that is charged is at most δ, and δ a little below it is not: ε is bracketed."""
    found = cost(PoissonGaussian(rate, sigma), delta).epsilon
    with mpmath.workdps(60):
        assert one_step_delta(rate, sigma, found) <= delta * (1 + 1e-9)
        if found > 1e-3:
            assert one_step_delta(rate, sigma, found * 0.99 - 1e-4) > delta * (1 - 1e-2)


def sum_of_steps(rate, sigma, steps, delta):
    """A lower bound on ε: the divergence of the sum of all outputs alone, which is post-processing."""
    drawn = np.arange(int(binom.ppf(1e-13, steps, rate)), int(binom.isf(1e-13, steps, rate)) + 1)
    weights, noise = binom.pmf(drawn, steps, rate), sigma * math.sqrt(steps)
    cuts = np.linspace(0, steps * rate + 8 * noise, 4001)[:, None]
    present = (weights * ndtr((drawn - cuts) / noise)).sum(axis=1)
    absent = ndtr(-cuts[:, 0] / noise)
    return brentq(lambda epsilon: (present - math.exp(epsilon) * absent).max() - delta, 1e-6, 50)


@pytest.mark.parametrize(("rate", "sigma"), [(256 / 60_000, 6.0), (1e-3, 2.0)])
def test_a_million_steps_lie_between_their_sum_and_rdp(rate, sigma):
    event = Repeated(PoissonGaussian(rate, sigma), 10**6)
    found = cost(event, 1e-5)
    assert sum_of_steps(rate, sigma, 10**6, 1e-5) <= found.epsilon
    assert found.epsilon <= rdp.epsilon(event, 1e-5, "zero-out") * 0.95


def test_few_records_drawn_a_million_times_lie_below_a_grid_beside_that_loss():
    """Little noise and a rate of 1/60,000: a record joins ten steps, and nearly all losses are one loss."""
    event = Repeated(PoissonGaussian(1 / 60_000, 0.5), 600_000)
    upper = by_dp_accounting([event], 1e-5, 1e-3, True)
    assert 0.9 * upper <= cost(event, 1e-5).epsilon <= upper


@pytest.mark.parametrize("sigma", [1e-6, 0.5, 3.0, 1e6])
@pytest.mark.parametrize("steps", [1, 100, 10**6])
def test_a_rate_of_one_is_the_gaussian_mechanism(sigma, steps):
    sampled = cost(Repeated(PoissonGaussian(1.0, sigma), steps), 1e-5).epsilon
    assert sampled == pytest.approx(cost(Gaussian(sigma / math.sqrt(steps)), 1e-5).epsilon, rel=1e-9)


def test_a_rate_of_nothing_is_refused_and_not_free():
    """A plan that never reads the data is a mistake, so a rate of 0 has no event; 'nothing' is Composed(())."""
    for rate in (0, 0.0, -0.0):
        with pytest.raises(ValueError, match="sample_rate must be a positive"):
            PoissonGaussian(rate, 1.0)
    assert cost(Composed(()), 1e-5).epsilon == 0
