import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.budget import (
    Composed,
    Except,
    FixedSizeGaussian,
    Gaussian,
    Iteration,
    Laplace,
    Ledger,
    LogisticPerturbation,
    NonPrivate,
    PoissonGaussian,
    Pure,
    RepeatAndSelect,
    Repeated,
    cost,
    rdp,
)
from sordino.budget.calibration import (
    OutOfReach,
    noise_against_sample_rate,
    noise_multiplier,
    price,
    square_root_law,
    steps,
)


def check(event, target, delta=1e-5, adjacency="zero-out"):
    """Never above the target, at most 0.1 % below, as judged by the price that is charged."""
    sigma = noise_multiplier(event, target, delta, adjacency)
    found = cost(event(sigma), delta, adjacency).epsilon
    assert target * (1 - 1e-3) <= found <= target
    return sigma


@settings(max_examples=3, deadline=None)
@given(st.floats(0.02, 0.5), st.integers(1, 500), st.floats(0.1, 10), st.sampled_from([1e-5, 1e-7]))
def test_poisson(rate, count, target, delta):
    check(lambda s: Repeated(PoissonGaussian(rate, s), count), target, delta)


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-3, 1e6), st.integers(1, 10_000), st.sampled_from(["zero-out", "add-remove", "replace-one"]))
def test_gaussian(target, count, adjacency):
    check(lambda s: Repeated(Gaussian(s), count), target, 1e-6, adjacency)


@pytest.mark.parametrize("target", [0.5, 8.0])
def test_what_exceptions_leave_of_delta(target):
    sigma = check(lambda s: Except(Gaussian(s / 40), 1e-6), target)
    assert sigma == pytest.approx(40 * noise_multiplier(Gaussian, target, 9e-6), rel=2e-3)


@settings(max_examples=5, deadline=None)
@given(st.floats(0.01, 100), st.integers(1, 3000))
def test_full_batch(target, count):
    sigma = check(lambda s: Repeated(PoissonGaussian(1.0, s), count), target)
    assert sigma == pytest.approx(noise_multiplier(lambda s: Repeated(Gaussian(s), count), target, 1e-5), rel=2e-3)


@pytest.mark.parametrize(
    ("batch", "n", "count", "target"),
    [
        (4096, 60_000, 560, 3.0),  # T&B (NOTES.md §1)
        (8192, 50_000, 360, 3.0),
        (1024, 60_000, 1450, 1.0),
        (1024, 50_000, 1440, 3.0),
        (512, 60_000, 4680, 3.0),
        (100, 60_000, 300_000, 2.11),  # PAW
        (32, 60_000, 18_750, 0.05),  # SI
        (1024, 1_281_167, 12_511, 71.0),  # INS Table 4
    ],
)
def test_settings_of_the_papers(batch, n, count, target):
    check(lambda s: Repeated(PoissonGaussian(batch / n, s), count), target, 1e-5)


@pytest.mark.parametrize(("rate", "epochs"), [(0.1427, 40), (0.1665, 80), (0.2, 100)])  # LSR
def test_large_sampling_rates(rate, epochs):
    check(lambda s: Repeated(PoissonGaussian(rate, s), math.ceil(epochs / rate)), 2.0)


def test_published_noise_is_found_again():
    """σ=1.54 is ε=2.365 by PLD (NOTES.md): the way back."""
    sigma = noise_multiplier(lambda s: Repeated(PoissonGaussian(1024 / 50_000, s), 1440), 2.365, 1e-5)
    assert sigma == pytest.approx(1.54, rel=5e-3)


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (lambda s: Repeated(Laplace(s), 5), "zero-out"),
        (lambda s: Composed((LogisticPerturbation(s, 1.0), Gaussian(32 * s))), "zero-out"),
        (lambda s: Iteration(10, 20, s), "replace-one"),
        (lambda s: Repeated(FixedSizeGaussian(1000, 20, s), 50), "replace-one"),
        (lambda s: Repeated(PoissonGaussian(0.05, s), 40), "replace-one"),
        (lambda s: RepeatAndSelect(Repeated(PoissonGaussian(0.02, s), 100), 10.0), "zero-out"),
        (lambda s: Composed((Gaussian(8.0), Repeated(PoissonGaussian(0.02, s), 300))), "zero-out"),
    ],
)
def test_other_events(event, adjacency):
    check(event, 2.0, 1e-5, adjacency)


@pytest.mark.parametrize("target", [1e-3, 1e3, 1e6, 1e12])
def test_very_small_and_very_large_targets(target):
    check(lambda s: Repeated(PoissonGaussian(0.01, s), 100), target)


def test_after_what_came_before():
    before = Repeated(Gaussian(8.0), 2)
    judged = price(1e-5, before=before)
    sigma = noise_multiplier(lambda s: Repeated(PoissonGaussian(0.05, s), 300), 2.0, 1e-5, price_of=judged)
    together = cost(Composed((before, Repeated(PoissonGaussian(0.05, sigma), 300))), 1e-5).epsilon
    assert 1.998 <= together <= 2.0


def test_calibrated_on_a_planned_ledger_fits_it():
    ledger = Ledger(2.0, 1e-5, planned=[(Repeated(Gaussian(8.0), 2), "normalisation")])

    def training(sigma):
        return Repeated(PoissonGaussian(0.05, sigma), 300)

    sigma = noise_multiplier(training, 2.0, 1e-5, price_of=ledger.epsilon_if)
    ledger.announce(training(sigma), "training")
    ledger.spend(Repeated(Gaussian(8.0), 2), "normalisation")
    ledger.spend(training(sigma), "training")
    assert 1.998 <= ledger.epsilon() <= 2.0
    assert not ledger.adaptive


def test_calibrated_on_a_ledger_that_has_spent_fits_it():
    ledger = Ledger(2.0, 1e-5)
    ledger.spend(Gaussian(8.0), "a look")

    def training(sigma):
        return Repeated(PoissonGaussian(0.05, sigma), 300)

    sigma = noise_multiplier(training, 2.0, 1e-5, price_of=ledger.epsilon_if)
    ledger.spend(training(sigma), "training")
    assert ledger.adaptive
    assert 1.998 <= ledger.epsilon() <= 2.0


@pytest.mark.parametrize("left", [1e-2, 1e-3, 1e-5, 1e-9])
def test_next_to_nothing_left_takes_much_noise_and_few_attempts(left):
    spent, asked = cost(Gaussian(1.0), 1e-5).epsilon, []

    def price_of(event):
        asked.append(event)
        return cost(Composed((Gaussian(1.0), event)), 1e-5).epsilon

    sigma = noise_multiplier(Gaussian, spent * (1 + left), 1e-5, price_of=price_of)
    assert spent <= price_of(Gaussian(sigma)) <= spent * (1 + left)
    assert len(asked) < 30


def counting(judge):
    asked = []

    def price_of(event):
        asked.append(event)
        return judge(event)

    return price_of, asked


@pytest.mark.parametrize("sigma", [3e-4, 0.5, 20.0])
def test_a_price_that_jumps_across_the_target_takes_few_attempts(sigma):
    """As on the grids of next to no noise at a large δ: nothing near the target is found however long one searches."""
    price_of, asked = counting(
        lambda event: 0.0 if event == Composed(()) or event.noise_multiplier >= sigma else 1e6 / event.noise_multiplier
    )
    found = noise_multiplier(Gaussian, 1.0, 1e-5, price_of=price_of)
    assert sigma <= found <= sigma * (1 + 1e-5)
    assert len(asked) < 32


def test_what_rounds_to_the_target_is_not_within_it():
    spent, target = 0.1, 0.3

    def price_of(event):  # one bit above the target until σ is 5: less what is spent, both are the same
        if event == Composed(()):
            return spent
        return math.nextafter(target, 1) if event.noise_multiplier < 5 else target

    assert math.nextafter(target, 1) - spent == pytest.approx(target - spent, rel=1e-15)
    assert noise_multiplier(Gaussian, target, 1e-5, price_of=price_of) >= 5


def test_targets_out_of_reach():
    with pytest.raises(OutOfReach, match="nothing is left"):
        noise_multiplier(lambda s: Gaussian(s), 1.0, 1e-5, price_of=price(1e-5, before=Gaussian(1.0)))
    with pytest.raises(OutOfReach, match="no noise multiplier"):
        noise_multiplier(lambda s: Composed((Gaussian(s), Pure(5.0))), 1.0, 1e-5)
    with pytest.raises(OutOfReach, match=r"is spent already$"):
        noise_multiplier(
            lambda s: Composed((Gaussian(s), Pure(5.0))), 6.0, 1e-5, price_of=price(1e-5, before=Gaussian(1))
        )
    with pytest.raises(OutOfReach, match="no noise multiplier"):
        noise_multiplier(lambda s: Composed((Gaussian(s), NonPrivate())), 1.0, 1e-5)
    with pytest.raises(OutOfReach, match="next to no noise"):
        noise_multiplier(lambda s: Pure(0.1), 1.0, 1e-5)
    with pytest.raises(OutOfReach, match="next to no noise"):
        noise_multiplier(lambda s: Repeated(Gaussian(s), 0), 1.0, 1e-5)


@pytest.mark.parametrize("target", [0, -1, math.inf, math.nan])
def test_targets_are_checked(target):
    with pytest.raises(ValueError, match="target"):
        noise_multiplier(lambda s: Gaussian(s), target, 1e-5)
    with pytest.raises(ValueError, match="target"):
        steps(lambda t: Repeated(Gaussian(1.0), t), target, price(1e-5))


@settings(max_examples=3, deadline=None)
@given(st.floats(0.05, 0.3), st.floats(1, 6), st.floats(0.3, 5))
def test_steps_are_the_most_that_fit(rate, sigma, target):
    judge = price(1e-5)
    try:
        count = steps(lambda t: Repeated(PoissonGaussian(rate, sigma), t), target, judge)
    except OutOfReach:
        assert judge(PoissonGaussian(rate, sigma)) > target
        return
    assert judge(Repeated(PoissonGaussian(rate, sigma), count)) <= target
    assert judge(Repeated(PoissonGaussian(rate, sigma), count + 1)) > target


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 500), st.floats(0.1, 10))
def test_steps_of_a_full_batch(sigma, target):
    judge = price(1e-6)
    try:
        count = steps(lambda t: Repeated(Gaussian(sigma), t), target, judge)
    except OutOfReach:
        assert judge(Gaussian(sigma)) > target
        return
    beyond = count + max(1, count >> 16)  # very many are not counted one by one
    assert judge(Repeated(Gaussian(sigma), count)) <= target < judge(Repeated(Gaussian(sigma), beyond))


def test_very_many_steps_take_few_attempts():
    """The price of 51 million steps takes a while: it is not asked for every one of the last few."""

    def judge(event):  # near that of a sampling rate of 0.01 and σ=100 at δ=1e-5
        return 3.9e-4 * event.count**0.5 + 4.1e-9 * event.count

    price_of, asked = counting(judge)
    count = steps(lambda t: Repeated(Gaussian(100.0), t), 3.0, price_of)
    assert judge(Repeated(Gaussian(100.0), count)) <= 3.0
    assert judge(Repeated(Gaussian(100.0), math.ceil(count * (1 + 2**-16)) + 1)) > 3.0
    assert len(asked) <= 9


def test_steps_out_of_reach():
    with pytest.raises(OutOfReach, match="one step"):
        steps(lambda t: Repeated(Gaussian(0.1), t), 1.0, price(1e-5))
    with pytest.raises(OutOfReach, match="2\\^40"):
        steps(lambda t: Repeated(Gaussian(1e9), t), 1.0, price(1e-5))


RATES = [0.01, 0.05, 0.1, 0.2]


def test_square_root_law():
    """T&B Fig. 6: σ ≈ c·√q with c≈13 at ε=3 and 60 epochs.

    Their accountant (old conversion) gives 15.1 at q=.01 falling to 13.5 at q=.2; the new conversion 13.7 to 11.9; PLD
    12.9 to 11.0. So the law holds within a tenth, and PLD saves a sixth of the noise.
    """
    noise = noise_against_sample_rate(RATES, 60, 3.0, 1e-5)
    ratios = noise / np.sqrt(RATES)
    assert ratios == pytest.approx([12.9, 11.4, 11.2, 11.0], rel=5e-3)
    assert square_root_law(RATES, noise) == pytest.approx(11.6, rel=5e-3)


def test_square_root_law_with_the_papers_accountant():
    def old(event):
        return rdp.classic_epsilon(event, 1e-5, "zero-out", "old")

    noise = [
        noise_multiplier(lambda s, q=q: Repeated(PoissonGaussian(q, s), math.ceil(60 / q)), 3.0, 1e-5, price_of=old)
        for q in RATES[1:]
    ]
    assert square_root_law(RATES[1:], noise) == pytest.approx(13.6, rel=5e-3)


def test_square_root_law_recovers_an_exact_law():
    assert square_root_law(RATES, 7 * np.sqrt(RATES)) == pytest.approx(7)


def test_noise_grows_with_the_sampling_rate():
    noise = noise_against_sample_rate([0.1, 0.2], 10, 2.0, 1e-5)
    assert np.all(np.diff(noise) > 0)


def test_epsilon_falls_as_delta_grows():
    event = Repeated(PoissonGaussian(0.02, 1.5), 300)
    assert np.all(np.diff([cost(event, delta).epsilon for delta in (1e-9, 1e-7, 1e-5, 1e-3)]) < 0)


def test_larger_batches_with_the_same_noise_an_example_cost_less():
    """INS Fig. 2: σ/B and the number of steps fixed, ε falls as the batch grows."""
    batches = [Repeated(PoissonGaussian(size / 50_000, size / 100), 500) for size in (64, 256, 1024)]
    assert np.all(np.diff([cost(event, 1e-6).epsilon for event in batches]) < 0)


@pytest.mark.parametrize(("epsilon", "less"), [(0.05, True), (40.0, True), (60.0, False)])
def test_sampling_against_iteration(epsilon, less):
    """T&B Fig. 9: 10 epochs at q=512/50000; PAI needs less noise only above ε≈40 (or in the very smallest ε).

    We find the upper crossing between 40 and 60, with PLD and with their accountant alike. The one below 0.2 we find
    with neither: at ε=.05 DP-SGD needs σ=18 (31 by theirs), PAI 135 (202). With fewer than 100 steps an epoch, the 99 %
    of the records that the figure protects are everyone.
    """
    sampled = noise_multiplier(lambda s: Repeated(PoissonGaussian(512 / 50_000, s), 970), epsilon, 1e-5)
    iterated = noise_multiplier(lambda s: Iteration(10, 97, s), epsilon, 1e-5, "replace-one")
    assert (sampled < iterated) == less
