"""Is the simple network better under noise and the complex one without? Said from the trials, with their intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from statistics import mean, stdev
from typing import Any, TypeVar

import numpy as np
from scipy.stats import t

from sordino.papers.privacy_aware.inputs import material
from sordino.papers.privacy_aware.networks import NETWORKS
from sordino.papers.privacy_aware.trials import NetworkTrial, repeated, run_all
from sordino.papers.records import Cell, Series
from sordino.papers.trials import Experiment
from sordino.selection import crossover

_T = TypeVar("_T")
PAPER = "privacy-aware"
CROSSOVER_SEEDS = 5
DEFINITION_2 = (
    "Crossovers are by Definition 2 on the means, interpolated in log ε; 0 and ∞ stand for below and above all ε here. "
    "Their intervals are of 95 %, and the verdicts follow from them alone"
)
LEVEL = 0.95
_HELD_OUT, _MOST_HELD_OUT = 0.1, 5000
_TUNING_SEED = 1000
_MOST_FURTHER = 3
GRID_GOES_ON = (
    f"and the grid goes on by its own ratio, {_MOST_FURTHER} times at most, until the best is not the last of it"
)
TUNING = (
    "Learning rates were chosen, uncounted, on a tenth of the training records (at most 5,000), held out, by one "
    f"training for each rate with the item's noise and epochs, {GRID_GOES_ON}: the trials of the record have them all. "
    "Without noise it is Adam at 1e-3"
)
ACCOUNTANT = "Ours are calibrated by PLD to the ε of the row; PAW prices by RDP"
REPEATS = "PAW reports the best of at least three trainings by test accuracy, ours is their mean"
NOT_PRIVATE_PCA = "Principal components are of the training records without noise, as in PAW: not private, not counted"
POOLING = "PAW's 64 inputs of MNIST and Fashion-MNIST are not described; ours are means of an 8×8 grid, which are free"
DROPOUT = "Without PAW's dropout (rates of 0.2 in its FCNs and 0.3 in its CNNs)"

_ROUNDING = 1e-9
"""The mean of equal scores may round above them, and no score is so near another."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % interval by Student's t; of one seed there is none."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        if len(values) < 2:
            return cls(mean(values), None)
        return cls(mean(values), float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / sqrt(len(values)))

    def percent(self) -> str:
        return f"{100 * self.mean:.2f}" + ("" if self.half is None else f" ± {100 * self.half:.2f}")

    def plain(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.half is None else f" ± {self.half:.4f}")

    def above(self, other: "Interval") -> bool | None:
        """Whether it lies above the other and the two do not overlap; None where that cannot be said."""
        if self.half is None or other.half is None:
            return None
        return self.mean - self.half > other.mean + other.half

    def exceeds(self, value: float) -> bool:
        """Whether all of it, or of one seed the mean, lies above the value."""
        return self.mean - (self.half or 0.0) > value + _ROUNDING

    def beside(self, other: "Interval") -> str:
        """In words, whether the two overlap, whichever lies above."""
        either = self.above(other), other.above(self)
        return "no interval" if None in either else f"intervals {'' if any(either) else 'not '}apart"


def scores(results: Sequence[dict[str, Any]]) -> Interval:
    return Interval.of([result["score"] for result in results])


Scored = dict[float, list[float]]
"""The scores of every seed at each ε."""


def points_of(scored: Scored) -> list[tuple[float, Interval]]:
    return [(epsilon, Interval.of(values)) for epsilon, values in scored.items()]


def crossing(simple: Scored, complex_: Scored, names: tuple[str, str] = ("the simple network", "the complex")) -> str:
    """The crossover of Definition 2 with its interval, and what that interval, not the means, shows."""
    budgets = sorted(simple)
    if min(len(values) for scored in (simple, complex_) for values in scored.values()) < 2:
        return "one seed has no interval"
    found = crossover(budgets, [simple[e] for e in budgets], [complex_[e] for e in budgets], LEVEL)
    ahead, overtaken = found.low > 0, found.high < inf
    if found.low == inf:
        shown = f"{names[0]} is ahead even at ε={budgets[-1]:g}"
    elif found.high == 0:
        shown = f"{names[1]} is ahead from ε={budgets[0]:g} on"
    else:
        shown = (
            f"that {names[0]} is ahead below it {'shows' if ahead else 'does not show'}, that {names[1]} overtakes "
            f"{'shows' if overtaken else 'does not'}"
        )
    ends = " to ".join(_crossing_at(end) for end in (found.low, found.high))
    more = f"; the means cross {found.crossings} times, and this is the last" if found.crossings > 1 else ""
    return f"crossover at ε of {_crossing_at(found.epsilon)} ({LEVEL:.0%} interval {ends}): {shown}{more}"


def _crossing_at(epsilon: float) -> str:
    """0 and ∞ stand for a crossover below and above all ε that were tried."""
    return "∞" if epsilon == inf else f"{epsilon:.2g}"


def constant(network: str) -> float:
    """What the best constant answer scores on the test records: its share of right ones, or its mean absolute error."""
    chosen = NETWORKS[network]
    y = material(chosen.dataset, chosen.inputs, 0, None, None).examined_y
    return float(abs(y - np.median(y)).mean()) if chosen.regression else float(np.bincount(y).max() / len(y))


def tuned(experiment: Experiment, trial: NetworkTrial, rates: Sequence[float], seeds: int = 1) -> NetworkTrial:
    """The trial with the rate that did best on held-out training records."""
    if experiment.quick or len(rates) == 1:
        return replace(trial, learning_rate=rates[0])
    return replace(trial, learning_rate=grid(experiment, trial, rates, seeds)[0])


def best_rate(
    rates: Sequence[float], scored: Callable[[Sequence[float]], Sequence[float]], least: bool = False
) -> tuple[float, dict[float, float]]:
    """The rate with the highest score (or the least), and what each gave; at an end of the grid, it looks further."""
    tries = dict(zip(rates, scored(rates), strict=True))
    ratio = rates[1] / rates[0]
    for further in range(_MOST_FURTHER + 1):
        best = (min if least else max)(tries, key=lambda rate: tries[rate])
        if min(tries) < best < max(tries) or further == _MOST_FURTHER:
            break
        beyond = best * ratio if best == max(tries) else best / ratio
        tries[beyond] = scored([beyond])[0]
    return best, dict(sorted(tries.items()))


def grid(
    experiment: Experiment, trial: NetworkTrial, rates: Sequence[float], seeds: int = 1
) -> tuple[float, dict[float, float]]:
    """The best rate on held-out records, with the trial's noise and epochs: a shorter run likes larger rates."""
    n = _size(trial)
    held_out = replace(
        trial,
        epsilon=None,
        noise_multiplier=trial.plan(n).noise_multiplier if trial.private and not experiment.quick else None,
        validation=min(_MOST_HELD_OUT, int(_HELD_OUT * n)),
        marks=1,
    )

    def scored(tried: Sequence[float]) -> list[float]:
        trials = [replace(held_out, learning_rate=rate, seed=_TUNING_SEED + s) for rate in tried for s in range(seeds)]
        found = [result["score"] for result in run_all(experiment, trials)]
        return [mean(found[place : place + seeds]) for place in range(0, len(found), seeds)]

    return best_rate(rates, scored, NETWORKS[trial.network].regression)


def _size(trial: NetworkTrial) -> int:
    return trial.records or TRAINED[NETWORKS[trial.network].dataset]


TRAINED = {
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar-10": 50_000,
    "svhn": 42_000,
    "location-30": 4010,
    "sms-spam": 4700,
    "medical-cost": 1000,
}
"""Training records in PAW's parts of each dataset."""


@dataclass(frozen=True)
class Setting:
    """How a network is trained privately, and plainly, to compare."""

    batch: int
    epochs: float
    rates: tuple[float, ...]
    plain_epochs: float
    seeds: int = 3
    plain_rate: float = 1e-3
    tuning_seeds: int = 1

    def private(self, network: str, epsilon: float | None, **changes: Any) -> NetworkTrial:
        """At the first of its rates, to be tuned."""
        return replace(NetworkTrial(network, epsilon, self.rates[0], self.batch, self.epochs), **changes)

    @property
    def plainly(self) -> str:
        """How it is trained without noise, for the record."""
        return f"Adam for {self.plain_epochs:g} epochs of batches of {self.batch}"

    def plain(self, network: str) -> NetworkTrial:
        return NetworkTrial.plain(network, self.plain_rate, self.batch, self.plain_epochs)

    @property
    def tuning(self) -> str:
        """How the learning rate was found, for the record."""
        return TUNING if len(self.rates) > 1 else f"None: the learning rate is {self.rates[0]:g}, as PAW gives about"

    def tuned(self, experiment: Experiment, network: str, epsilon: float | None, **changes: Any) -> NetworkTrial:
        return tuned(experiment, self.private(network, epsilon, **changes), self.rates, self.tuning_seeds)


FULL_FCN = Setting(100, 500, (0.1,), 20)
"""At one rate of those that PAW gives (0.1 to 0.2, for CNNs about 0.05): 500 epochs are too long to try several."""
SHORT_FCN = Setting(250, 20, (0.5, 1.0, 2.0), 20)
SHORT_CNN = Setting(250, 2, (1.0, 2.0, 4.0), 2)
"""A training so much shorter than PAW's wants larger rates: at 0.5 SVHN's networks do not leave their start."""
FULL_CNN = Setting(100, 300, (0.05,), 30)
SHORT_RNN = Setting(100, 10, (0.5, 1.0, 2.0), 10, plain_rate=5e-3)
FULL_RNN = Setting(100, 50, (0.1, 0.2, 0.5), 20, plain_rate=5e-3)
"""Settings were tried on a tenth of the training messages, held out, with the small LSTM: PAW gives none."""


@dataclass(frozen=True)
class Comparison:
    """A complex network and a simple one, each with noise and without."""

    name: str
    complex_private: Interval
    simple_private: Interval
    complex_plain: Interval
    simple_plain: Interval

    @property
    def shows(self) -> bool | None:
        """Whether the simple one wins with noise and the complex one without, both beyond their intervals."""
        parts = (self.simple_private.above(self.complex_private), self.complex_plain.above(self.simple_plain))
        return None if None in parts else all(parts)

    def words(self) -> str:
        private = 100 * (self.simple_private.mean - self.complex_private.mean)
        plain = 100 * (self.complex_plain.mean - self.simple_plain.mean)
        noisy, without = (
            self.simple_private.beside(self.complex_private),
            self.complex_plain.beside(self.simple_plain),
        )
        end = {None: "one seed cannot say more", True: "the phenomenon shows", False: "it does not show in full"}
        return (
            f"{self.name}: the simple network is better by {private:+.2f} points under noise ({noisy}), the complex "
            f"one by {plain:+.2f} without ({without}): {end[self.shows]}"
        )


def compared(
    experiment: Experiment, name: str, networks: tuple[str, str], epsilon: float | None, setting: Setting, **more: Any
) -> tuple[Comparison, list[list[dict[str, Any]]]]:
    """The complex and the simple network at one budget (or, with None, at the noise given), and their trainings."""
    private = [
        repeated(experiment, setting.tuned(experiment, network, epsilon, **more), setting.seeds) for network in networks
    ]
    plain = [repeated(experiment, setting.plain(network), setting.seeds) for network in networks]
    found = Comparison(name, *(scores(results) for results in (*private, *plain)))
    return found, [*private, *plain]


def price_columns(results: list[dict[str, Any]]) -> list[Cell]:
    """ε spent, σ, learning rate, seeds."""
    first = results[0]
    sigma = float(first["plan"]["noise_multiplier"])
    return [float(first["epsilon"]), sigma, float(first["learning_rate"]), len(results)]


PRICE = ("ε spent", "σ", "rate", "seeds")


def line(label: str, points: Sequence[tuple[float, Interval]], panel: str = "", scale: float = 100) -> Series:
    """A line of a figure with its intervals."""
    return Series(
        *(label, [x for x, _ in points], [scale * found.mean for _, found in points], panel),
        [scale * (found.half or 0.0) for _, found in points],
    )


def some(experiment: Experiment, rows: Sequence[_T], count: int = 1) -> Sequence[_T]:
    """All of them, or when trying out the first."""
    return rows[:count] if experiment.quick else rows
