import logging
import math
import subprocess
import sys

import numpy as np
import pytest
from dp_accounting.rdp import compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

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
    cost,
    rdp,
)
from sordino.budget.events import base

ORDERS = (1.5, 2.0, 3.5, 8.0, 32.0)


def renyi(log_p, log_q, order, low, high):
    """Rényi divergence by quadrature: independent of every formula in the library."""
    value, _ = integrate.quad(
        lambda x: math.exp(order * log_p(x) - (order - 1) * log_q(x)), low, high, limit=400, epsabs=0, epsrel=1e-10
    )
    return math.log(value) / (order - 1)


def normal(x, mean, sigma):
    return -((x - mean) ** 2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))


@pytest.mark.parametrize("order", [1.5, 2.0, 3.5, 8.0])
def test_sampled_gaussian_against_quadrature(order):
    q, sigma = 0.1, 1.3

    def mixture(x):
        return np.logaddexp(math.log1p(-q) + normal(x, 0, sigma), math.log(q) + normal(x, 1, sigma))

    found = rdp.rdp(PoissonGaussian(q, sigma), "zero-out", (order,))[0]
    exact = renyi(mixture, lambda x: normal(x, 0, sigma), order, -20, 40)
    assert found >= exact * (1 - 1e-9)
    if order == int(order):  # between whole orders dp_accounting adds up the sizes of a series that alternates
        assert found == pytest.approx(exact, rel=1e-6)
    # the other direction is never worse (Mironov, Talwar & Zhang 2019)
    assert found >= renyi(lambda x: normal(x, 0, sigma), mixture, order, -40, 20)


@pytest.mark.parametrize("order", ORDERS)
def test_laplace_against_quadrature(order):
    scale = 1.7

    def density(x, centre):
        return -abs(x - centre) / scale - math.log(2 * scale)

    pieces = [(-60.0, 0.0), (0.0, 1.0), (1.0, 60.0)]
    total = sum(
        math.exp((order - 1) * renyi(lambda x: density(x, 1), lambda x: density(x, 0), order, *piece))
        for piece in pieces
    )
    assert rdp.rdp(Laplace(scale), "zero-out", (order,))[0] == pytest.approx(math.log(total) / (order - 1), rel=1e-6)


@given(st.floats(0.01, 30), st.sampled_from(ORDERS))
def test_pure_is_randomised_response(epsilon, order):
    yes = -math.log1p(math.exp(-epsilon))
    no = yes - epsilon
    exact = np.logaddexp(order * yes + (1 - order) * no, order * no + (1 - order) * yes)
    found = rdp.rdp(Pure(epsilon), "zero-out", (order,))[0]
    assert found == pytest.approx(exact / (order - 1), rel=1e-9, abs=1e-12)
    assert found <= min(epsilon, order * epsilon**2 / 2) * (1 + 1e-9) + 1e-11  # both textbook bounds


def test_gaussian_is_alpha_over_two_sigma_squared():
    assert rdp.rdp(Gaussian(2.0), "zero-out", ORDERS) == pytest.approx(np.array(ORDERS) / 8, rel=1e-9)


def test_a_replaced_record_moves_a_sum_twice_as_far():
    for event in (lambda s: Gaussian(s), lambda s: Laplace(s), lambda s: ShuffledGaussian(10, s)):
        replaced, zeroed = rdp.rdp(event(2.0), "replace-one"), rdp.rdp(event(1.0), "zero-out")
        assert replaced == pytest.approx(zeroed)


def test_a_full_batch_by_poisson_sampling_is_a_gaussian():
    for adjacency in ("zero-out", "add-remove", "replace-one"):
        assert rdp.rdp(PoissonGaussian(1.0, 2.0), adjacency) == pytest.approx(rdp.rdp(Gaussian(2.0), adjacency))


@pytest.mark.parametrize(
    ("event", "adjacencies"),
    [
        (FixedSizeGaussian(100, 10, 1.0), ("zero-out", "add-remove")),
        (ShuffledGaussian(10, 1.0), ("add-remove",)),
        (Iteration(2, 10, 1.0), ("add-remove",)),
        (PoissonGaussian(0.1, 1.0), ("replace-one",)),
    ],
)
def test_events_without_a_bound_are_refused(event, adjacencies):
    for adjacency in adjacencies:
        for wrapped in (event, Repeated(event, 3), RepeatAndSelect(Composed((event, Gaussian(1.0))), 5.0)):
            with pytest.raises(UnsupportedEvent):
                rdp.rdp(wrapped, adjacency)


def test_fixed_size_sampling_lies_between_one_participation_and_its_lower_bound():
    """Full participation is the most it can cost; the two-point mixture q·N(2,σ²)+(1−q)·N(0,σ²) the least."""
    n, size, sigma = 1000, 50, 4.0
    orders = (2.0, 4.0, 16.0)
    found = rdp.rdp(FixedSizeGaussian(n, size, sigma), "replace-one", orders)
    assert np.all(found <= rdp.rdp(Gaussian(sigma), "replace-one", orders))
    assert np.all(found >= rdp.rdp(PoissonGaussian(size / n, sigma), "zero-out", orders))
    whole = rdp.rdp(FixedSizeGaussian(50, 50, sigma), "replace-one", orders)
    assert whole == pytest.approx(rdp.rdp(Gaussian(sigma), "replace-one", orders))


def test_very_much_noise_on_fixed_size_samples_is_priced():
    assert 0 <= rdp.epsilon(FixedSizeGaussian(1000, 10, 1e9), 1e-5, "replace-one") < 1e-2


def test_rdp_adds_up_over_a_composition():
    one, two = PoissonGaussian(0.01, 1.0), Laplace(3.0)
    together = rdp.rdp(Composed((Repeated(one, 7), two)), "zero-out")
    assert together == pytest.approx(7 * rdp.rdp(one, "zero-out") + rdp.rdp(two, "zero-out"))
    assert np.all(rdp.rdp(Composed(()), "zero-out") == 0)


def test_non_private_is_infinite_at_every_order():
    assert np.all(np.isinf(rdp.rdp(Composed((Gaussian(1.0), NonPrivate())), "zero-out")))
    assert rdp.epsilon(RepeatAndSelect(NonPrivate(), 3.0), 1e-5, "zero-out") == math.inf


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 2.0, math.inf])
def test_selection_costs_more_than_one_run_and_more_for_more_runs(shape):
    training = Repeated(PoissonGaussian(0.01, 1.0), 500)
    alone = rdp.epsilon(training, 1e-5, "zero-out")
    few, many = (rdp.epsilon(RepeatAndSelect(training, mean, shape), 1e-5, "zero-out") for mean in (3.0, 50.0))
    assert alone <= few <= many


def test_geometric_selection_by_its_theorem():
    """Papernot & Steinke 2021, Theorem 2 (η=1), worked by hand on two orders."""
    orders, mean = np.array(rdp.ORDERS), 20.0
    runs = orders / 2 / 9  # a Gaussian with σ=3
    constant = 2 * np.min((1 - 1 / orders) * runs + math.log(mean) / orders)
    expected = runs + constant + math.log(mean) / (orders - 1)
    expected = np.minimum.accumulate(expected[::-1])[::-1]  # RDP grows with the order
    found = rdp.rdp(RepeatAndSelect(Gaussian(3.0), mean), "zero-out")
    assert found == pytest.approx(expected, rel=1e-6)


def test_one_order_is_priced_as_among_all_orders():
    """Selection borrows from neighbouring orders: a filter must not lose them by asking for one order alone."""
    event = RepeatAndSelect(Gaussian(3.0), 20.0)
    assert rdp.rdp_at(event, "zero-out", 8.0) == pytest.approx(
        rdp.rdp(event, "zero-out")[rdp.ORDERS.index(8.0)], rel=1e-12
    )
    assert rdp.rdp_at(Composed(()), "zero-out", 8.0) == 0


@settings(max_examples=8, deadline=None)
@given(st.floats(1e-12, 1), st.floats(0.05, 1e6), st.integers(1, 10**9))
def test_rdp_is_never_negative_and_never_nan(rate, sigma, count):
    values = rdp.rdp(Repeated(PoissonGaussian(rate, sigma), count), "zero-out")
    assert not np.any(np.isnan(values))
    assert np.all(values > 0)  # never rounded down to nothing
    whole = rdp.rdp(Repeated(Gaussian(sigma), count), "zero-out")
    assert np.all(values <= whole * (1 + 1e-9))  # a sample never costs more than everyone


def test_conversion_cost_is_what_the_conversion_adds():
    for order in (1.5, 8.0, 64.0):
        by_library = compute_epsilon([order], [1.0], 1e-5)[0]
        assert 1.0 + rdp.conversion_cost(order, 1e-5) == pytest.approx(by_library, rel=1e-12)


def test_the_new_conversion_is_never_looser_than_the_old():
    event = Repeated(PoissonGaussian(0.02, 1.5), 1000)
    new, old = (rdp.classic_epsilon(event, 1e-5, "zero-out", kind) for kind in ("new", "old"))
    assert cost(event, 1e-5).rdp <= new < old


def test_orders_that_do_not_converge_say_nothing_to_the_user():
    code = (
        "from sordino.budget import rdp, PoissonGaussian\n"
        "rdp.rdp(PoissonGaussian(0.5, 1.0), 'zero-out')\n"
        "import logging; logging.getLogger('absl').warning('something else')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "converge" not in done.stderr
    assert "something else" in done.stderr  # only that one message is dropped


def test_the_case_above_would_warn(monkeypatch):
    told = logging.getLogger("absl")
    monkeypatch.setattr(told, "filters", [])
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    told.addHandler(handler)
    before = told.level
    told.setLevel(logging.WARNING)  # the command line, if it was called in this process, has raised it
    try:
        base._leaf_rdp.cache_clear()
        rdp.rdp(PoissonGaussian(0.5, 1.0), "zero-out")
    finally:
        told.removeHandler(handler)
        told.setLevel(before)
    assert any("converge" in record.getMessage() for record in records)
