"""What advice depends on, all of it public: facts about the data, the budget, and the noise that follows from them."""

import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod, sqrt
from statistics import median
from typing import Any

from sordino.budget import Gaussian, calibration, check_delta_against_n, cost
from sordino.data import Column, Facts, Schema, number_set_aside
from sordino.selection.attributes import Attributes
from sordino.selection.private_tables import tables_plan
from sordino.selection.table_models import BINS, encoded_width

SELECTION_SHARE = 0.15
STRONG_WEIGHT = 1.0
"""What a good feature is taken to do: change the odds by the factor e, from one bound or category to the other."""
LOGISTIC_CURVATURE = 0.25
_UNIFORM = (1 / 2, 1 / 12)
"""Mean and variance of a number between 0 and 1."""
LEAST_NOISE = 0.01
LARGEST_NOISE_SHARE = 1.0
"""Private tables are worthwhile while their noise is at most the count of a cell with evenly spread records."""


@dataclass(frozen=True)
class BudgetSplit:
    """One ε divided between selection and training on the same records, in the terms of Gaussian noise.

    Releases add up in squares of 1/σ: a share s of the budget is a Gaussian release with σ/√s, where σ is what the
    whole budget would buy. Tuning has no share: learning rates come from proxy rows, free. Nor has a selection that is
    not private. The final score is on other records: it may cost the whole ε again.
    """

    target_epsilon: float
    target_delta: float
    selection: float

    def __post_init__(self) -> None:
        if not 0 <= self.selection < 1:
            raise ValueError(f"the share of the selection must be at least 0 and below 1, not {self.selection!r}")
        calibration.check_target(self.target_epsilon)

    @classmethod
    def proposed(cls, target_epsilon: float, target_delta: float, *, selects: bool) -> "BudgetSplit":
        return cls(target_epsilon, target_delta, SELECTION_SHARE * selects)

    @property
    def training(self) -> float:
        return 1 - self.selection

    @property
    def whole_noise(self) -> float:
        """The noise multiplier of one release that takes the whole ε."""
        return calibration.noise_multiplier(Gaussian, self.target_epsilon, self.target_delta)

    def noise(self, share: float) -> float:
        """The noise multiplier of one release that takes this share."""
        return self.whole_noise / sqrt(share)

    def epsilon(self, share: float) -> float:
        """ε of this share on its own; the shares' ε add up to more than the target, which they cost together."""
        return cost(Gaussian(self.noise(share)), self.target_delta).epsilon if share > 0 else 0.0


@dataclass(frozen=True)
class AdviceRequest:
    """All that advice depends on: public facts, the budget, public records and measurements on them."""

    facts: Facts
    n: int
    epsilon: float
    delta: float
    public_records: int = 0
    best_measured: str | None = None
    """The model that was best at this ε on proxy rows, if that was measured."""
    measured: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.facts.classes is None:
            raise ValueError(
                "the target is a number, and advice is for classes: declare its categories in the schema, or fit it by "
                "fit_linear of sordino.training.convex"
            )
        if self.n < 5:
            raise ValueError(
                f"{self.n} records are too few to train on some and score on others; there must be at least 5"
            )
        calibration.check_target(self.epsilon)
        check_delta_against_n(self.delta, self.n)

    def at(self, epsilon: float) -> "AdviceRequest":
        """The same request at another ε."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # δ and n are unchanged, and were warned of before
            return replace(self, epsilon=epsilon)

    @property
    def trained(self) -> int:
        return self.n - number_set_aside(self.n)

    @property
    def outputs(self) -> int:
        return len(self.facts.classes or ())

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.facts.columns or ()

    @property
    def width(self) -> int:
        """How many numbers encode a whole example."""
        if self.facts.columns is not None:
            return encoded_width(self.columns)
        return prod(self.facts.shape)

    @cached_property
    def all_pay_from(self) -> float:
        """The ε from which a strong weight of a typical column exceeds its noise; 0 without categorical columns."""
        categories = [len(column.categories) for column in self.columns if column.categories is not None]
        if not categories:
            return 0.0
        enough = self._enough(median(categories))
        return cost(Gaussian(enough), self.delta).epsilon if enough > LEAST_NOISE else inf

    @property
    def bins_pay(self) -> bool:
        """Whether a strong weight of a bin exceeds its noise, so that binning numeric columns pays."""
        return self.training_noise <= self._enough(BINS)

    def _enough(self, categories: float) -> float:
        """The most noise that a strong weight of one of this many categories still exceeds."""
        return self.trained * LOGISTIC_CURVATURE * STRONG_WEIGHT / (categories * sqrt(len(self.columns) + 1))

    @cached_property
    def kept(self) -> tuple[Column, ...]:
        """The columns to use, by public facts alone: all of them, or below `all_pay_from` those that stand out."""
        if self.epsilon >= self.all_pay_from:
            return self.columns
        return worthwhile_columns(self.columns, self.trained, self.training_noise)

    @cached_property
    def selects(self) -> bool:
        """Whether a private selection is worth its share.

        Never where public data does it free, nor where all columns pay: the ridge keeps their noise down.
        With the whole workflow counted a selection lost accuracy on Adult at ε=0.1 and 1 (item adult-best) and on
        Breast Cancer up to ε=5; from 10 on it gained there, up to 3 points (figure-4).
        """
        needed = self.epsilon < self.all_pay_from
        return needed and not self.public_records and self.tables_noise[2] <= LARGEST_NOISE_SHARE

    @property
    def selects_freely(self) -> bool:
        """Whether features are selected on public records."""
        return bool(self.public_records) and self.epsilon < self.all_pay_from and self.tables_noise[2] < inf

    @cached_property
    def tables_noise(self) -> tuple[float, float, float]:
        """Noise on a count of a table with the target, what an even cell counts, and their ratio; ∞ without columns."""
        if len(self.columns) < 2 or self.facts.task not in ("classification", "regression"):
            return inf, 0.0, inf
        attributes = Attributes(Schema.of(self.facts))
        share = BudgetSplit.proposed(self.epsilon, self.delta, selects=True)
        try:
            plan = tables_plan(attributes, share.noise(SELECTION_SHARE))
        except ValueError:  # tables of more cells than a machine holds
            return inf, 0.0, inf
        label = len(plan.sizes) - 1
        noise = plan.noise_of((0, label))
        even = self.trained / median(size * plan.sizes[-1] for size in plan.sizes[:-1])
        return noise, even, noise / even

    @cached_property
    def split(self) -> BudgetSplit:
        return BudgetSplit.proposed(self.epsilon, self.delta, selects=self.selects)

    @cached_property
    def training_noise(self) -> float:
        """The noise multiplier of the whole training, as if it were one release."""
        return self.split.noise(self.split.training)


def worthwhile_columns(columns: tuple[Column, ...], n: int, noise_multiplier: float) -> tuple[Column, ...]:
    """The columns whose weights, if strong, exceed their noise in a logistic regression (PAW's Corollary 1).

    As printed, the lemma before it claims "if and only if"; only one direction holds: a small weight is to be dropped,
    but so are larger ones whose term has the opposite sign of the residual.
    """
    noise = weight_noise(columns, n, noise_multiplier)
    return tuple(column for column in columns if noise[column.name] < STRONG_WEIGHT)


def weight_noise(columns: tuple[Column, ...], n: int, noise_multiplier: float) -> dict[str, float]:
    """Standard deviation of the noise on a weight of each column, in a logistic regression by objective perturbation.

    A linear term with noise σ·R moves the minimiser by that over the loss's curvature; R = √(columns + 1) bounds a row.
    The curvature is n/4 times the feature's variance v: 1/12 of a uniform number, about 1/c of an indicator of one of c
    even categories; the bias, which goes with the feature's mean m, adds the factor √(1 + m²). For columns that do not
    depend on each other, and without the ridge, which shrinks weight and noise alike.
    """
    row = sqrt(len(columns) + 1)
    moments = {c.name: _UNIFORM if c.categories is None else (1 / len(c.categories),) * 2 for c in columns}
    scale = noise_multiplier * row / (n * LOGISTIC_CURVATURE)
    return {name: scale * sqrt(1 + mean**2) / variance for name, (mean, variance) in moments.items()}


def noise_of_run(parameters: int, noise_multiplier: float, n: int) -> float:
    """Norm of the noise on the mean gradient of the whole run, in units of the clip: σ·√parameters/n."""
    return noise_multiplier * sqrt(parameters) / n
