"""Figures 1 to 3 of LSR, whose numbers are not in the text of the paper: only ours are drawn."""

from math import ceil
from statistics import fmean

from sordino.budget import noise_against_sample_rate, printed, square_root_law
from sordino.papers.outcomes import OURS, classic_noise, ours
from sordino.papers.records import Cell, Record, Series, percent
from sordino.papers.sampling_rates.common import DELTA, PAPER, SHORTFALL, TUNING, settings_here, trained
from sordino.papers.sampling_rates.generalisation import BATCH, LEARNING_RATE, RECORDS, SIGMA, Descent
from sordino.papers.trials import Experiment
from sordino.training import LARGE_RATES

_NO_NUMBERS = "The paper's figure has no numbers in its text"
_LAST = 5
"""Measurements at the end of a run whose mean is in the table."""
_LEVEL = 0.01
"""Shares of test records that differ by no more are called level."""


def figure_1(experiment: Experiment) -> Record:
    """Does noise help to generalise, and does it matter which?"""
    iterations = experiment.pick(2000, 10_000)
    kinds = {
        "GD": Descent("GD", RECORDS, iterations=iterations),
        f"SGD, batch {BATCH}": Descent("SGD", BATCH, iterations=iterations),
        "DP-GD": Descent("DP-GD", RECORDS, SIGMA, iterations=iterations),
    }
    rows: list[list[Cell]] = []
    series: list[Series] = []
    tests: list[float] = []
    for label, descent in kinds.items():
        descent = descent.quick() if experiment.quick else descent
        curve = descent.run(experiment.say, experiment.store)
        places = [float(done) for done in curve]
        for panel, place in (("test", 1), ("training", 0)):
            series.append(Series(label, places, [100 * both[place] for both in curve.values()], panel))
        plan = descent.plan
        end = [fmean(both[place] for both in list(curve.values())[-_LAST:]) for place in (1, 0)]
        tests.append(end[0])
        cost = printed(plan.epsilon(DELTA)) if plan.private else "∞"
        rows.append([label, descent.noise_multiplier, cost, *(percent([share]) for share in end)])
    return Record(
        PAPER,
        "figure-1",
        f"Generalisation of GD, SGD and DP-GD on {RECORDS:,} images of Fashion-MNIST",
        ["descent", "σ", "ε", "test accuracy", "training accuracy"],
        rows,
        [
            f"Learning rate {LEARNING_RATE}, no momentum, {iterations:,} iterations; the table has means of the last "
            f"{_LAST} measurements",
            f"DP-GD clips to 1, with noise of the variance that drawing {BATCH} gradients of the clip's length has; "
            "the paper does not give its own. ε is at δ=1e-5: this is about noise, not about privacy",
            f"{_NO_NUMBERS}; it finds SGD ahead of GD on test records, and DP-GD level with SGD: {_as_found(*tests)}",
        ],
        experiment.shortfall("2,000 iterations in place of 10,000", "one seed, not 5"),
        "None: the settings are the paper's",
        *("iteration", "accuracy, %", ""),
        series,
    )


def _as_found(plain: float, sampled: float, noisy: float) -> str:
    """Whether the test accuracies of GD, SGD and DP-GD are as the paper finds them."""
    ahead, level = sampled > plain, abs(noisy - sampled) <= _LEVEL
    return f"here the first {'shows' if ahead else 'does not show'}, the second {'shows' if level else 'does not show'}"


def figure_2(experiment: Experiment) -> Record:
    """Noise that each rate needs for each ε."""
    epochs, most, least = 60, 15.0, 0.5
    budgets = (3.0, 10.0) if experiment.quick else (1.0, 2.0, 3.0, 5.0, 10.0, 20.0)
    rates = [0.25, 1.0] if experiment.quick else [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0]
    rows: list[list[Cell]] = []
    series: list[Series] = []
    for epsilon in budgets:
        experiment.say(f"noise for ε={epsilon:g}")
        sigmas = [float(sigma) for sigma in noise_against_sample_rate(rates, epochs, epsilon, DELTA)]
        inside = [(rate, sigma) for rate, sigma in zip(rates, sigmas, strict=True) if least <= sigma <= most]
        series.append(Series(f"ε={epsilon:g}", [rate for rate, _ in inside], [sigma for _, sigma in inside]))
        large = [(rate, sigma) for rate, sigma in zip(rates, sigmas, strict=True) if rate >= 0.1]
        law = square_root_law(*zip(*large, strict=True))
        rows.append([epsilon, "PLD", law, *sigmas])
        theirs = [classic_noise(rate, ceil(epochs / rate), epsilon, DELTA) for rate in rates]
        rows.append([epsilon, "RDP, old", None, *theirs])
    series.append(Series("13·√q (T&B, ε=3)", rates, [13 * rate**0.5 for rate in rates], points=True))
    return Record(
        PAPER,
        "figure-2",
        f"Noise multiplier σ for {epochs} epochs at each sampling rate q and ε",
        ["ε", "accountant", "c of σ ≈ c·√q, q ≥ 0.1", *(f"q={rate:g}" for rate in rates)],
        rows,
        [
            f"δ=1e-5; PLD is drawn where σ lies in the paper's range of {least:g} to {most:g}",
            "LSR and T&B, whose c≈13 at ε=3 is drawn, priced by RDP with the old conversion: the second row of each ε; "
            "PLD needs less noise",
            _NO_NUMBERS,
        ],
        None,
        "",
        *("sampling rate q", "noise multiplier σ", "xy"),
        series,
    )


def figure_3(experiment: Experiment) -> Record:
    """Accuracy as the budget is spent."""
    panels = {"fashion-mnist": ("lsr-f1", "lsr-f2", "lsr-f3"), "cifar-10": ("lsr-c1", "lsr-c2", "lsr-c3")}
    earlier = {"fashion-mnist": (2.7, 86.1), "cifar-10": (7.53, 66.2)}
    rows: list[list[Cell]] = []
    series: list[Series] = []
    for dataset, names in panels.items():
        for name in settings_here(experiment, names):
            found = trained(experiment, name)
            series.append(Series.along(found, name, dataset, "epsilon"))
            rows.append([name, dataset, LARGE_RATES[name].epsilon, LARGE_RATES[name].accuracy, *ours(found)])
        epsilon, accuracy = earlier[dataset]
        series.append(Series("Papernot et al.", [epsilon], [accuracy], dataset, points=True))
    return Record(
        PAPER,
        "figure-3",
        "Accuracy against ε along a run",
        ["setting", "data", "paper's ε", "paper", *OURS],
        rows,
        [f"δ=1e-5; each run is calibrated to its own ε, and measured ten times. {_NO_NUMBERS}"],
        experiment.shortfall(SHORTFALL, all=1),
        TUNING,
        *("ε", "test accuracy, %", ""),
        series,
    )
