"""Private logistic regression under a plan: one fit that is released, or many for experiments."""

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Ledger
from sordino.data import in_memory
from sordino.mechanisms import Stream, Streams, clip_rows, memory
from sordino.training.convex.plan import LogisticPlan
from sordino.training.convex.solver import MOST_PRODUCTS, least_tolerance, minimise
from sordino.training.fitting import Fitted, Job, check_linear, train_in_one_release
from sordino.training.linear import check_labels
from sordino.training.planning import check_whole

_BLOCK = 4096
Array = NDArray[np.float64]
Vectors = NDArray[np.floating]


def fit_logistic(
    plan: LogisticPlan,
    x: Vectors,
    y: NDArray[np.integer],
    ledger: Ledger,
    streams: Streams | None = None,
    *,
    what: str = "logistic regression",
    part: str = "train",
) -> Array:
    """Weights of the features and, last, of the bias: (d+1,), or (classes, d+1) for more than two classes.

    Guarantee: the plan's event, charged before rows and labels are read. A row [x; 1] longer than the plan's norm is
    scaled down to it, one with a non-finite number counts as empty; y are class indices. `streams` must be used for
    nothing else.
    """
    ledger.refuse_add_remove()
    n, width = _check_shapes(x, y)
    _check_adjacency(plan, ledger)
    streams = Streams.fresh() if streams is None else streams
    generator = streams.generator(Stream.NOISE)
    fits = 1 if plan.classes == 2 else plan.classes
    everything = np.ones((fits, width), dtype=bool)
    noise = plan.perturbation.objective_noise(generator, everything)
    _check_tolerance(plan, n, width, float(np.linalg.norm(noise, axis=1).max()))
    require_memory_for_logistic(n, width)
    ledger.spend(plan.event, what, part, seeded=streams.predictable)
    rows = np.empty((n, width))
    for start in range(0, n, _BLOCK):
        block = slice(start, start + _BLOCK)
        rows[block] = clip_rows(with_bias(x[block]), plan.data_norm) / plan.data_norm
    linear = noise - _positive_sums(rows, y, plan.classes)
    solved = minimise(rows, np.ones(n), linear, np.full(fits, plan.ridge), np.full(fits, plan.tolerance / 2))
    released = plan.perturbation.released(generator, solved, plan.ridge, plan.tolerance)
    return (released[0] if fits == 1 else released) / plan.data_norm


def train_logistic(plan: LogisticPlan, job: Job) -> Fitted:
    """`fit` under a LogisticPlan: the weights of `fit_logistic`, named "weights"."""
    _check_adjacency(plan, job.ledger)
    x, y = (np.asarray(part) for part in in_memory(job.records))
    n, width = _check_shapes(x, y)
    check_linear(job.model, width - 1, 1 if plan.classes == 2 else plan.classes)
    # The noise is drawn after the charge: ten times its expected norm is a bound that it hardly ever exceeds.
    _check_tolerance(plan, n, width, 10 * plan.perturbation.expected_norm(width))
    require_memory_for_logistic(n, width)

    def solve(ledger: Ledger, streams: Streams, what: str) -> Array:
        return fit_logistic(plan, x, y, ledger, streams, what=what, part=job.part)

    return train_in_one_release(plan, job, "logistic regression", solve)


def require_memory_for_logistic(n: int, width: int) -> None:
    """Refuse a fit to n rows of this width that does not fit in memory, before it is charged."""
    # The rows twice, once weighted for a Hessian, a few matrices of their width, and the solver's products of columns.
    needed = 8.0 * (2.5 * n * width + 6 * width**2 + 3 * min(n * width**2 / 2, MOST_PRODUCTS))
    memory.require(needed, f"a fit to {n:,} rows of {width:,} numbers", "use fewer columns, categories or records")


def fit_many(
    x: Vectors,
    y: NDArray[np.integer],
    masks: NDArray[np.bool_],
    plan: LogisticPlan,
    repeats: int,
    generator: np.random.Generator,
    data_norms: Array | None = None,
) -> Array:
    """For experiments, not charged: the caller charges, or the data is a public benchmark.

    Weights (subsets, repeats, d+1) of a binary plan, fitted `repeats` times with fresh noise on each feature subset of
    masks (subsets, d); zero outside the subset, the bias last. data_norms gives each subset its own norm in place of
    the plan's: with the same event, fewer features then get less noise. A longer row is refused, except that an excess
    of up to a millionth, which may be rounding, is scaled away.
    """
    n, width = _check_shapes(x, y)
    if plan.classes != 2:
        raise ValueError("fit_many is for two classes; fit_logistic takes more")
    if masks.ndim != 2 or masks.shape[1] != width - 1 or masks.dtype != np.bool_:
        raise ValueError(f"masks must be an array of booleans (subsets, {width - 1}), not {masks.dtype} {masks.shape}")
    check_whole("repeats", repeats)
    norms = np.full(len(masks), plan.data_norm) if data_norms is None else np.asarray(data_norms, dtype=np.float64)
    if norms.shape != (len(masks),) or not (np.isfinite(norms) & (norms > 0)).all():
        raise ValueError(f"data_norms must be {len(masks)} positive numbers, one for each subset")
    rows = with_bias(x)
    if not np.isfinite(rows).all():
        raise ValueError("experiments take finite rows only")
    chosen = np.concatenate([masks, np.ones((len(masks), 1), dtype=bool)], axis=1)
    excess = _excess(rows, chosen, norms)
    if (excess > 1 + 1e-6).any():
        raise ValueError("a row is longer than the norm of its subset: give larger data_norms, or clip the rows")
    rows /= excess[:, None]
    every = np.repeat(chosen, repeats, axis=0)
    norm = np.repeat(norms, repeats)
    noise = plan.perturbation.objective_noise(generator, every)
    linear = noise * norm[:, None] - _positive_sums(rows, y, 2)
    solved = minimise(rows, np.ones(n), linear, plan.ridge * norm**2, plan.tolerance / 2 * norm, every)
    released = solved + plan.perturbation.output_noise(generator, every, plan.ridge, plan.tolerance) / norm[:, None]
    return released.reshape(len(masks), repeats, width)


def scores(weights: Array, x: Vectors) -> Array:
    """x·w + bias for weights (…, d+1): (n, …)."""
    return np.asarray(np.tensordot(with_bias(x), weights, axes=([1], [-1])))


def predict_logistic(weights: Array, x: Vectors) -> NDArray[np.int64]:
    """The class of each row, from what `fit_logistic` gave."""
    found = scores(weights, x)
    return (found > 0).astype(np.int64) if weights.ndim == 1 else found.argmax(axis=1)


def logistic_outputs(weights: Array, x: Vectors) -> Array:
    """A number for each class whose softmax is its probability; of more than two, each against the rest, normalised."""
    found = scores(weights, x)
    return np.stack([np.zeros(len(found)), found], axis=1) if weights.ndim == 1 else -np.logaddexp(0, -found)


def with_bias(x: Vectors) -> Array:
    return np.concatenate([np.asarray(x, dtype=np.float64), np.ones((len(x), 1))], axis=1)


def _check_adjacency(plan: LogisticPlan, ledger: Ledger) -> None:
    """The plan's event holds under its own adjacency: under another the ledger would misprice it."""
    if ledger.terms.adjacency != plan.adjacency:
        raise ValueError(
            f"the plan is for {plan.adjacency} and the ledger for {ledger.terms.adjacency}: plan with the ledger's"
        )


def _check_tolerance(plan: LogisticPlan, n: int, width: int, noise_norm: float) -> None:
    """Decided before the data is read: whether the solver converges must not depend on it.

    The computed gradient is brought to half the tolerance, so that the true one, which differs by rounding, meets it.
    """
    least = least_tolerance(n, width, plan.ridge, noise_norm)
    if least > plan.tolerance / 2:
        raise ValueError(
            f"a gradient norm of {plan.tolerance:g} is too fine for floating point with {n:,} rows and a ridge of "
            f"{plan.ridge:g}: plan with a tolerance of {4 * least:.2g}"
        )


def _check_shapes(x: Vectors, y: NDArray[np.integer]) -> tuple[int, int]:
    if x.ndim != 2 or y.shape != (len(x),) or len(x) == 0:
        raise ValueError(f"expected vectors (n, d) and n labels, not {x.shape} and {y.shape}")
    return len(x), x.shape[1] + 1


def _excess(rows: Array, chosen: NDArray[np.bool_], norms: Array) -> Array:
    """Each row's norm relative to the bound, in the subset where that ratio is largest; at least 1."""
    squares, most = rows**2, np.ones(len(rows))
    parts = len(chosen) // 64 + 1
    for part, own in zip(np.array_split(chosen, parts), np.array_split(norms, parts), strict=True):
        np.maximum(most, (squares @ (part.T / own**2)).max(axis=1, initial=0.0), out=most)
    return np.sqrt(most)


def _positive_sums(rows: Array, y: NDArray[np.integer], classes: int) -> Array:
    """The sum of each problem's positive rows; for two classes, those of class 1."""
    check_labels(y, classes)
    wanted = [1] if classes == 2 else range(classes)
    return np.stack([rows[y == label].sum(axis=0) for label in wanted])
