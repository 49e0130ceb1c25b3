"""Figure 6 of PAW: how much ε two networks need to reach 85 % as the training set grows."""

from statistics import mean

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from sordino.papers.privacy_aware.comparing import PAPER, POOLING, Interval, line, some, tuned
from sordino.papers.privacy_aware.networks import size_name
from sordino.papers.privacy_aware.trials import NetworkTrial, price, repeated
from sordino.papers.records import Cell, Record, Series
from sordino.papers.trials import Experiment

REACHED = 0.85
_SIGMA, _BATCH, _STEPS, _MARKS = 2.0, 100, 4000, 100
_HELD_OUT = 5000
_NETWORKS = {"simple": size_name(128), "complex": size_name(2048, 256, 64)}
_RATES = {"simple": (0.2, 0.5, 1.0), "complex": (0.1, 0.2, 0.5)}


def figure_6(experiment: Experiment) -> Record:
    """ε until 85 %, by the number of records."""
    sizes = experiment.pick(
        (10_000, 20_000, 50_000, 250_000, 1_000_000),
        (10_000, 20_000, 40_000, 50_000, 125_000, 250_000, 500_000, 1_000_000),
    )
    rows: list[list[Cell]] = []
    series: list[Series] = []
    needed: dict[str, dict[int, Interval]] = {}
    for kind, network in _NETWORKS.items():
        # Sizes share the rate: a step is the same on any number of records.
        usual = NetworkTrial(network, None, 1.0, _BATCH, _STEPS * _BATCH / 60_000, noise_multiplier=_SIGMA)
        rate = tuned(experiment, usual, _RATES[kind]).learning_rate
        needed[kind] = {}
        for n in some(experiment, sizes, 2):
            trial = NetworkTrial(
                *(network, None, rate, _BATCH, _STEPS * _BATCH / n),
                noise_multiplier=_SIGMA,
                records=n,
                validation=_HELD_OUT,
                marks=_MARKS,
            )
            results = repeated(experiment, trial, 3)
            plan = (trial.few() if experiment.quick else trial).plan(48 if experiment.quick else n)
            reached = [first_step(result["curve"]) for result in results]
            spent = [price(plan, steps, trial.delta) for steps in reached if steps is not None]
            found = Interval.of(spent) if spent else None
            if found is not None and len(spent) == len(results):
                needed[kind][n] = found
            steps = mean(step for step in reached if step is not None) if spent else None
            rows.append(
                [kind, n, steps, None if found is None else found.plain(), f"{len(spent)} of {len(results)}", rate]
            )
        if needed[kind] or experiment.quick:
            points = list(needed[kind].items()) or [(48, Interval(0.0, None))]
            series.append(line(kind, [(float(n), at) for n, at in points], scale=1))
    return Record(
        PAPER,
        "figure-6",
        "ε until 85 % accuracy on MNIST, by the number of training records",
        ["network", "records", "steps", "ε", "reached by", "rate"],
        rows,
        [
            *_fits(needed),
            f"σ={_SIGMA:g}, batches of {_BATCH}, δ=1e-5, by PLD; ± and bars are half of the 95 % interval over seeds",
            f"ε and steps are means of the seeds that reached 85 % within {_STEPS:,} steps: too low where not all did, "
            "and such sizes are neither drawn nor fitted",
            "ε is the price of the steps until then: a figure to compare by, not a promise, since when to stop "
            "depended on the records",
            "Beyond 55,000 the records are drawn with replacement, as PAW does: the ε there protects one copy of an "
            f"image, not the image. When to stop was read off {_HELD_OUT:,} held-out training images, uncounted, every "
            f"{_STEPS // _MARKS} steps",
            POOLING,
            "PAW has α ≥ 1, as here, and reports α=1.1, β=8,922 for the simple network, which does not give its own "
            "ε=1 at n=13,574",
        ],
        experiment.pick("five sizes in place of a dense range, ", "")
        + f"3 seeds in place of 10, {_STEPS:,} steps at most",
        "Rates were chosen, uncounted, on held-out training records",
        *("training records", "ε", "x"),
        series,
    )


def first_step(curve: dict[str, float]) -> int | None:
    """The first step at which the network was seen to reach the accuracy."""
    return min((int(step) for step, share in curve.items() if share >= REACHED), default=None)


def fitted(sizes: list[float], epsilons: list[float]) -> tuple[float, float]:
    """α ≥ 1 and β of PAW's ε = ln(α + β/n), by least squares of ε."""
    n, epsilon = np.asarray(sizes), np.asarray(epsilons)

    def missed(terms: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(curve(n, *terms) - epsilon)

    found = least_squares(missed, (1.01, 1e4), bounds=((1, 0), (np.inf, np.inf)), x_scale=(0.1, 1e4))
    return float(found.x[0]), float(found.x[1])


def curve(n: NDArray[np.float64], alpha: float, beta: float) -> NDArray[np.float64]:
    return np.asarray(np.log(alpha + beta / n))


def _fits(needed: dict[str, dict[int, Interval]]) -> list[str]:
    said = []
    for kind, found in needed.items():
        if len(found) > 2:
            sizes, epsilons = [float(n) for n in found], [at.mean for at in found.values()]
            alpha, beta = fitted(sizes, epsilons)
            missed = np.abs(curve(np.asarray(sizes), alpha, beta) - epsilons).max()
            said.append(
                f"Refitted, ε = ln(α + β/n) of the {kind} network has α={alpha:.3f}, β={beta:,.0f} and misses by at "
                f"most {missed:.3f}"
            )
        else:
            said.append(f"The {kind} network reached 85 % with every seed at {len(found)} sizes: too few to fit")
    shared = [n for n in needed.get("simple", {}) if n in needed.get("complex", {})]
    if shared:
        more = [f"{needed['complex'][n].mean / needed['simple'][n].mean:.2f} at n={n:,}" for n in shared]
        said.append(f"ε of the complex network as a multiple of the simple one's: {', '.join(more)}")
    return said
