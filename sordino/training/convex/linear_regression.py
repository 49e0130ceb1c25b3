"""Private linear regression from noisy sufficient statistics with a ridge that adapts to the noise (AdaSSP, Wang 2018).

Rows [x; 1] are clipped to a public norm and divided by it; targets are clipped to public bounds and mapped to [−1, 1].
Three releases: the Gram matrix XᵀX, its smallest eigenvalue, and Xᵀy. All else is post-processing.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sordino.budget import Composed, Event, Gaussian, Ledger
from sordino.data import in_memory
from sordino.mechanisms import (
    BLOCK,
    GRAM_BITS,
    Stream,
    Streams,
    check_length,
    check_noise,
    gram_sum,
    memory,
    noisy_gram,
    noisy_sum,
    whole_rows,
)
from sordino.training.convex.logistic import with_bias
from sordino.training.fitting import Fitted, Job, check_linear, train_in_one_release
from sordino.training.planning import OneReleasePlan, Target, check_positive

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
_RISK = 0.05
"""The probability that the ridge is too small for the noise: 5 %, as in the paper. Privacy does not depend on it."""
_UNIT = 2.0 ** (-2 * GRAM_BITS)
_LEAST_MOVES = 1 + 2.0**-8
"""How far a record moves the computed smallest eigenvalue: 1 by Weyl, plus twice the error of a symmetric eigensolver,
which is below 64·d·2⁻⁵³·‖XᵀX‖: less than 2⁻¹⁰ for up to 2³⁷ numbers."""


@dataclass(frozen=True)
class LinearPlan(OneReleasePlan):
    """What a linear fit may do to the data.

    Guarantee: three Gaussian releases with this noise multiplier. With rows and targets of size at most 1, a present
    record adds xxᵀ of Frobenius norm ≤ 1 to the Gram matrix, so moves its smallest eigenvalue by ≤ 1 (Weyl), and adds
    xy of norm ≤ 1 to Xᵀy. The matrix is released in coordinates that preserve the Frobenius norm: off-diagonal
    entries count twice, so their noise is smaller by √2. Each row and target is rounded to whole units, sums are of
    whole numbers, and the noise is exact, so this holds in finite precision too.
    """

    data_norm: float
    target_range: tuple[float, float]
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_positive("data_norm", self.data_norm)
        low, high = self.target_range
        if not -math.inf < low < high < math.inf:
            raise ValueError(f"target_range must be two public bounds, low and high, not {self.target_range!r}")
        _ = self.event
        check_noise(_UNIT, self.noise_multiplier * _LEAST_MOVES)

    @classmethod
    def calibrated(
        cls,
        *,
        n: int,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        data_norm: float,
        target_range: tuple[float, float],
        ledger: Ledger | None = None,
        adjacency: str = "zero-out",
    ) -> "LinearPlan":
        """The plan with the least noise that meets the target; with a ledger, after all that it already holds.

        The ledger's adjacency is taken, and its target where it has one.
        """
        target = Target.of(n, target_epsilon, target_delta, adjacency, ledger)
        sigma = target.noise_multiplier(lambda s: Composed((Gaussian(s),) * 3))
        return cls(data_norm, target_range, sigma)

    @property
    def event(self) -> Event:
        return Composed((Gaussian(self.noise_multiplier),) * 3)

    def fitted(self, job: Job) -> Fitted:
        x, y = (np.asarray(part) for part in in_memory(job.records))
        _check_data(x, y)
        check_linear(job.model, x.shape[1], 1)

        def solve(ledger: Ledger, streams: Streams, what: str) -> Array:
            return fit_linear(self, x, y, ledger, streams, what=what, part=job.part)

        return train_in_one_release(self, job, "linear regression", solve)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"target_range": list(self.target_range)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "LinearPlan":
        low, high = document["target_range"]
        return cls(document["data_norm"], (low, high), document["noise_multiplier"])


def fit_linear(
    plan: LinearPlan,
    x: NDArray[np.floating],
    y: NDArray[np.floating],
    ledger: Ledger,
    streams: Streams | None = None,
    *,
    what: str = "linear regression",
    part: str = "train",
) -> Array:
    """Weights (d+1,) of the features and, last, of the bias, on the targets' own scale.

    Guarantee: the plan's event, charged before rows and targets are read. A row longer than the plan's norm is scaled
    down, a target outside its bounds is clipped; a record with a non-finite number counts as empty.
    """
    ledger.refuse_add_remove()
    _check_data(x, y)
    streams = Streams.fresh() if streams is None else streams
    ledger.spend(plan.event, what, part, seeded=streams.predictable)
    generator = streams.generator(Stream.NOISE)
    rows, targets = unit_records(plan, x, y)
    gram, least, products = sufficient_statistics(rows, targets)
    d, sigma = len(gram), plan.noise_multiplier
    noisy = noisy_gram(generator, gram, _UNIT, sigma)
    # An estimate that is too low only makes the ridge larger than it needs to be.
    guess = float(noisy_sum(generator, least, _UNIT, sigma * _LEAST_MOVES)) - sigma * float(-ndtri(_RISK / 2))
    noisy_products = noisy_sum(generator, products, _UNIT, sigma)
    unit_weights = _ridge_solution(noisy, noisy_products, _ridge(d, sigma, max(guess, 0.0)))
    low, high = plan.target_range
    weights = unit_weights / plan.data_norm * (high - low) / 2
    weights[-1] += (low + high) / 2
    return weights


def _check_data(x: NDArray[np.floating], y: NDArray[np.floating]) -> None:
    """Shapes and size, before anything is charged."""
    if x.ndim != 2 or y.shape != (len(x),) or len(x) == 0:
        raise ValueError(f"expected vectors (n, d) and n targets, not {x.shape} and {y.shape}")
    check_length(len(x))
    n, width = len(x), x.shape[1] + 1
    memory.require(
        8.0 * (8 * n * width + 10 * width**2),
        f"a fit to {n:,} rows of {width:,} numbers",
        "use fewer columns, categories or records",
    )


def unit_records(plan: LinearPlan, x: NDArray[np.floating], y: NDArray[np.floating]) -> tuple[Array, Array]:
    """Rows and targets of size at most 1, in whole numbers of 2^−GRAM_BITS."""
    low, high = plan.target_range
    y = np.asarray(y, dtype=np.float64)
    known = np.isfinite(y)
    rows = whole_rows(with_bias(x), plan.data_norm, GRAM_BITS) * known[:, None]
    targets = np.where(known, 2 * (np.clip(np.where(known, y, low), low, high) - low) / (high - low) - 1, 0.0)
    return rows, np.rint(np.ldexp(np.clip(targets, -1, 1), GRAM_BITS))


def sufficient_statistics(rows: Array, targets: Array) -> tuple[Whole, Whole, Whole]:
    """The Gram matrix, its smallest eigenvalue, and the products with the targets, of `unit_records`: in `_UNIT`s."""
    parts = [slice(start, start + BLOCK) for start in range(0, len(rows), BLOCK)]
    gram = gram_sum((rows[part], rows[part]) for part in parts)
    products = gram_sum((rows[part], targets[part]) for part in parts)
    least = np.rint(np.linalg.eigvalsh(gram * _UNIT)[0] / _UNIT)
    return gram, np.asarray(least, dtype=np.int64), products


def _ridge(d: int, sigma: float, least: float) -> float:
    """The ridge that raises the smallest eigenvalue to the norm of the noise, where the data alone do not.

    That norm is at most √(2d)·σ on average and, with probability 1 − risk/2, at most √(2·log(2/risk))·σ more: tighter
    than the paper's √(d·log(2d²/risk))·σ.
    """
    noise = sigma * (math.sqrt(2 * d) + math.sqrt(2 * math.log(2 / _RISK)))
    return max(0.0, noise - least)


def _ridge_solution(gram: Array, products: Array, ridge: float) -> Array:
    """Directions whose eigenvalue is not positive after noise and ridge carry no information, and get no weight."""
    values, vectors = np.linalg.eigh(gram)
    raised = values + ridge
    usable = raised > 1e-9 * max(float(np.abs(raised).max()), 1e-300)
    return np.asarray(vectors[:, usable] @ ((vectors[:, usable].T @ products) / raised[usable]))


def predict_linear(weights: Array, x: NDArray[np.floating]) -> Array:
    return np.asarray(with_bias(x) @ weights)
