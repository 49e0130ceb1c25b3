"""Dörmann et al. 2021, "Not All Noise Is Accounted Equally" (LSR): large sampling rates with much noise.

They price by RDP and draw a batch in twenty parts, in which a record can come twice; ours draw once at the whole rate,
and are calibrated by PLD to the ε that they report. Their figures have no numbers in the text: only ours are drawn.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from sordino import models
from sordino.budget import Ledger, noise_against_sample_rate, printed, square_root_law
from sordino.data import PoissonSampler, load
from sordino.features import Pixels, as_array
from sordino.papers.declarations import Declaration, Item
from sordino.papers.recipe_trials import RecipeTrial, settings
from sordino.papers.records import Cell, Record, Series, percent
from sordino.papers.tables import TrainingRow, accuracy, classic_noise, training_record
from sordino.papers.trials import Experiment, Result, Say, Trial, resumed_or_restarted, scored_along
from sordino.runs import Run
from sordino.training import LARGE_RATES, SGD, USUAL_SCALE, NetworkHead, Plan, Shifts, fit

_DELTA = 1e-5
_LONG = ("lsr-c2", "lsr-c3")
"""Trainings of 100 epochs, some six hours of one core each: a shorter one would say nothing about the paper's."""


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """Declared changes to a setting; `views` are of images moved by at most a pixel."""
    kept = {name: value for name, value in given.items() if name != "views"}
    return kept | ({"shifts": Shifts(given["views"], 1)} if "views" in given else {})


def _words(given: dict[str, Any]) -> str:
    """Changes to a setting, for a row of a table."""
    said = [f"{name.replace('_', ' ')} {value}" for name, value in given.items() if name != "views"]
    views = given.get("views", 0)
    return ", ".join([*said, f"{views} moved view{'s' * (views > 1)}"] if views else said)


def _trial(name: str, given: dict[str, Any], **more: Any) -> RecipeTrial:
    """One of the nine settings at the ε that the paper reports for it."""
    made, changed = LARGE_RATES[name], settings(**_changes(given))
    return RecipeTrial(made.dataset, name, epsilon=made.epsilon, delta=_DELTA, settings=changed, **more)


def _accuracies(experiment: Experiment, item: Declaration) -> Record:
    """Tables 1 and 2: accuracy at their ε, which ours by PLD do not exceed; published is whom they compare with.

    A setting may have another row, with changes of our own: where its accuracy fell short of the paper's when first
    trained (item choices).
    """
    rows = []
    for name, authors, epsilon, reported, *ours in item.published:
        made, before = LARGE_RATES[name], f"{authors}: {reported} at ε={epsilon}"
        theirs = (made.dataset, made.sample_rate, before, made.noise_multiplier, made.epsilon, made.accuracy)
        if experiment.full or name not in _LONG:
            for given in ({}, *ours):
                label = f"{name}, {_words(given)}" if given else name
                rows.append(TrainingRow((label, *theirs), _trial(name, given, marks=10)))
    return training_record(experiment, item, rows)


def _choices(experiment: Experiment, item: Declaration) -> Record:
    """Changes to the settings whose accuracy lay below the paper's when first trained."""
    rows = [
        TrainingRow(
            (name, LARGE_RATES[name].epsilon, _words(given) or "the paper's"),
            _trial(name, given, validation=5000, simulated=500),
            2,
        )
        for name, given in (item.given["tried"][3:4] if experiment.quick else item.given["tried"])
    ]
    return training_record(experiment, item, rows, accuracy)


def _along_a_run(experiment: Experiment, item: Declaration) -> Record:
    """Figure 3."""
    rows = []
    for name, made in LARGE_RATES.items():
        if made.dataset != "mnist" and (experiment.full or name not in _LONG):
            cells = (name, made.dataset, made.epsilon, made.accuracy)
            rows.append(TrainingRow(cells, _trial(name, {}, marks=10), line=name, panel=made.dataset))
    return training_record(experiment, item, rows, along="epsilon")


RECORDS, BATCH, _LEARNING_RATE = 1000, 50, 0.01
PARAMETERS = 11_330
SIGMA = round(RECORDS * math.sqrt((1 - BATCH / RECORDS) / (BATCH * PARAMETERS)), 3)
"""Noise of the same variance as a draw of BATCH records has, where gradients are as long as the clip of 1."""
_UNCLIPPED = 1e6


@dataclass(frozen=True)
class Descent(Trial):
    """A way to descend on images of Fashion-MNIST, by a network of PARAMETERS weights.

    Its result has the accuracies on training and test images along the run: {iteration: [both]}.
    """

    kind: ClassVar[str] = "descent"

    name: str
    batch: int
    noise_multiplier: float = 0.0
    """0: without noise and without clipping. Otherwise clipped to 1."""
    seed: int = 0
    iterations: int = 2000
    marks: int = 20
    records: int = RECORDS
    tested: int = 10_000

    @property
    def plan(self) -> Plan:
        sampler = PoissonSampler(self.records, min(self.records, self.batch))
        if self.noise_multiplier == 0:
            return Plan(sampler, _UNCLIPPED, 0.0, self.iterations, private=False)
        return Plan(sampler, 1.0, self.noise_multiplier, self.iterations)

    def quick(self) -> "Descent":
        return replace(self, iterations=4, marks=2, records=96, tested=50)

    def compute(self, folder: Path, say: Say) -> Result:
        return resumed_or_restarted(folder, lambda run: self._trained(run, say))

    def _trained(self, run: Run, say: Say) -> Result:
        data, pixels = load("fashion-mnist"), Pixels(*USUAL_SCALE["fashion-mnist"])
        rows = np.sort(np.random.default_rng(0).permutation(len(data.train))[: self.records])
        x, y = as_array(pixels(data.train.x[rows])), data.train.y[rows]
        test_x, test_y = as_array(pixels(data.test.x[: self.tested])), data.test.y[: self.tested]
        head, plan = NetworkHead(models.lsr_small_cnn), self.plan
        model = head.model(x[0].size, 10)

        def score() -> list[float]:
            of = [(x, y), (test_x, test_y)]
            found = [head.scores(model.weights(), inputs, 10).argmax(dim=1).numpy() for inputs, _ in of]
            return [float(np.mean(guesses == labels)) for guesses, (_, labels) in zip(found, of, strict=True)]

        def on_progress(done: int, total: int) -> None:
            say(f"{self.name}: iteration {done:,} of {total:,}")

        every = math.ceil(self.iterations / self.marks)
        curve, measure = scored_along(run, every, score, on_progress)
        fit(
            plan,
            model,
            head.records(x, y),
            optimiser=SGD(_LEARNING_RATE),
            ledger=Ledger(path=run.ledger),
            run=run,
            seed=self.seed,
            checkpoint_every=every,
            on_progress=measure,
        )
        if str(self.iterations) not in curve:  # stopped between the last step and its measurement
            measure(self.iterations, self.iterations)
        return curve


_LAST = 5
"""Measurements at the end of a run whose mean is in the table."""
_LEVEL = 0.01
"""Shares of test records that differ by no more are called level."""


def _generalisation(experiment: Experiment, item: Declaration) -> Record:
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
        ends = []
        for panel, place in (("test", 1), ("training", 0)):
            shares = [both[place] for both in curve.values()]
            series.append(Series(label, [float(done) for done in curve], [100 * share for share in shares], panel))
            ends.append(fmean(shares[-_LAST:]))
        tests.append(ends[0])
        cost = printed(descent.plan.epsilon(_DELTA)) if descent.plan.private else "∞"
        rows.append([label, descent.noise_multiplier, cost, *(percent([share]) for share in ends)])
    words = {"iterations": f"{iterations:,}", "found": _as_found(*tests)}
    return item.record(experiment, rows, series, words=words)


def _as_found(plain: float, sampled: float, noisy: float) -> str:
    """Whether the test accuracies of GD, SGD and DP-GD are as the paper finds them."""
    ahead, level = sampled > plain, abs(noisy - sampled) <= _LEVEL
    return f"here the first {'shows' if ahead else 'does not show'}, the second {'shows' if level else 'does not show'}"


def _noise(experiment: Experiment, item: Declaration) -> Record:
    """Noise that each rate needs for each ε."""
    epochs, most, least = 60, 15.0, 0.5
    budgets = (3.0, 10.0) if experiment.quick else (1.0, 2.0, 3.0, 5.0, 10.0, 20.0)
    rates = [0.25, 1.0] if experiment.quick else [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0]
    rows: list[list[Cell]] = []
    series: list[Series] = []
    for epsilon in budgets:
        experiment.say(f"noise for ε={epsilon:g}")
        sigmas = [float(sigma) for sigma in noise_against_sample_rate(rates, epochs, epsilon, _DELTA)]
        inside = [(rate, sigma) for rate, sigma in zip(rates, sigmas, strict=True) if least <= sigma <= most]
        series.append(Series(f"ε={epsilon:g}", [rate for rate, _ in inside], [sigma for _, sigma in inside]))
        large = [(rate, sigma) for rate, sigma in zip(rates, sigmas, strict=True) if rate >= 0.1]
        law = square_root_law(*zip(*large, strict=True))
        rows.append([epsilon, "PLD", law, *sigmas])
        theirs = [classic_noise(rate, math.ceil(epochs / rate), epsilon, _DELTA) for rate in rates]
        rows.append([epsilon, "RDP, old", None, *theirs])
    series.append(Series("13·√q (T&B, ε=3)", rates, [13 * rate**0.5 for rate in rates], points=True))
    columns = ["ε", "accountant", "c of σ ≈ c·√q, q ≥ 0.1", *(f"q={rate:g}" for rate in rates)]
    return item.record(experiment, rows, series, columns)


ITEMS: dict[str, Item] = {
    "table-1": _accuracies,
    "table-2": _accuracies,
    "choices": _choices,
    "figure-1": _generalisation,
    "figure-2": _noise,
    "figure-3": _along_a_run,
}
