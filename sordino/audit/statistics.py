"""Statistics that distinguish the outputs of two arms: how an output is flattened, and what is fitted to some of them.

No bound depends on this code being right: statistics are fitted on some runs and measured on others. It only decides
how much is found.
"""

import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parts = dict[str, Array]
"""The parts of an output by name, each as a flat array."""
Statistic = tuple[str, Callable[[Array], Array]]
"""A name, and a function from rows of features to scores."""

_NAMED = 32
"""Parts summarised one by one."""
_ALIKE = 6
"""Parts compared in pairs, where their shapes agree."""
_BITS = 32
"""Numbers whose lowest bits are examined."""
_PAIRS = 256
_EXACT = 1e-9
"""Noise with a correlation this close to ±1 was used twice."""
_SINGLE = 8
_RIDGES = (1e-12, 1e-3, 1e-1, 1.0)
_COLUMNS = (4, 16, 64, 256, 1024)
_FULL = 512
"""Columns whose covariance is used."""
_TREES = 48
_LIMB = 52
"""Bits of a large integer that become one number: floats hold at most 53 bits exactly."""
_LARGE = 2**53
_KINDS = "biufcmM"
"""NumPy's kinds of numbers and times."""
_TAME = 1e100
"""Larger numbers are replaced by a logarithm, so that their squares stay finite."""


def parts_of(output: Any) -> Parts:
    """The parts of an output: numbers, arrays, tensors, modules, and dicts and lists of them."""
    found: Parts = {}
    _collect(output, "", found)
    return found


def parts_of_error(problem: Exception) -> Parts:
    """What a training that raises releases: the kind of exception and its message."""
    kind = type(problem).__name__
    return {f"raised {kind}": np.ones(1), f"message of {kind}": np.array([float(zlib.crc32(str(problem).encode()))])}


def tame(values: Array) -> Array:
    """The values in the same order, finite and so small that sums of squares do not overflow; NaN becomes 0."""
    finite = np.nan_to_num(values)
    size = np.abs(finite)
    return np.where(size > _TAME, np.sign(finite) * _TAME * (1 + np.log(np.maximum(size, _TAME) / _TAME)), finite)


def _collect(output: Any, name: str, found: Parts) -> None:
    if hasattr(output, "state_dict"):
        output = output.state_dict()
    if isinstance(output, Mapping):
        for key in sorted(output, key=str):
            _collect(output[key], f"{name}/{key}" if name else str(key), found)
    elif isinstance(output, Sequence) and not isinstance(output, str | bytes) and not _numbers(output):
        found[f"{name} length"] = np.array([float(len(output))])
        for place, value in enumerate(output):
            _collect(value, f"{name}/{place}" if name else str(place), found)
    elif output is None:
        found[name or "output"] = np.empty(0)
    else:
        name = name or "output"
        values = _flat(output)
        found[name] = _as_floats(values)
        for place, limb in enumerate(_limbs(values)):
            found[f"{name}, bits from {place * _LIMB} on"] = limb


def _numbers(output: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float | complex | np.number) for value in output)


def _flat(output: Any) -> NDArray[Any]:
    """The numbers as a flat array; large integers are not rounded yet."""
    if hasattr(output, "detach"):
        output = output.detach().cpu().to_dense()
        output = output.double() if output.is_floating_point() else output
    elif hasattr(output, "toarray"):  # SciPy's sparse ones
        output = output.toarray()
    large = isinstance(output, Sequence) and any(_is_large(value) for value in output)
    try:
        values = np.asarray(output, dtype=object if large else None).ravel()
        if values.dtype == object:  # numbers of Python, or no numbers at all
            return np.array([int(value) if _whole(value) else float(value) for value in values], dtype=object)
        if values.dtype.kind not in _KINDS:
            raise TypeError
        if np.iscomplexobj(values):
            values = np.concatenate([values.real, values.imag])
        return values
    except (TypeError, ValueError):
        raise TypeError(
            f"train must return numbers, arrays, tensors, or dicts or lists of them, not {type(output).__name__}"
        ) from None


def _is_large(value: Any) -> bool:
    return _whole(value) and abs(int(value)) >= _LARGE


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer)


def _as_floats(values: NDArray[Any]) -> Array:
    if values.dtype != object:
        with np.errstate(over="ignore"):  # of more than double precision
            return values.astype(np.float64)
    most = int(sys.float_info.max)
    return np.array([float(min(max(value, -most), most) if _is_large(value) else value) for value in values])


def _limbs(values: NDArray[Any]) -> list[Array]:
    """Integers that a float would round, as exact limbs of 52 bits, the lowest first; empty for other values."""
    if values.dtype == object:
        values = np.array([value if isinstance(value, int) else 0 for value in values], dtype=object)
    elif not np.issubdtype(values.dtype, np.integer):
        return []
    found: list[Array] = []
    if np.any((values >= _LARGE) | (values <= -_LARGE)):
        while np.any((values != 0) & (values != -1)):
            found.append((values & (2**_LIMB - 1)).astype(np.float64))
            values = values >> _LIMB
    return found


def summary(parts: Parts) -> dict[str, float]:
    """Features of an output of any size: lengths, norms, and counts of repeated, zero and missing values."""
    everything = np.concatenate([*parts.values(), np.empty(0)])
    finite = tame(everything[np.isfinite(everything)])
    found = {
        "number of parts": float(len(parts)),
        "length": float(len(everything)),
        "numbers that are not finite": float(len(everything) - len(finite)),
        "zeros": float(np.count_nonzero(finite == 0)),
        "distinct values": float(len(np.unique(finite))),
        "whole numbers": float(np.count_nonzero(finite == np.round(finite))),
    } | _moments("output", finite)
    named = list(parts.items())[:_NAMED]
    for name, values in named:
        found[f"length of {name}"] = float(len(values))
        found |= _moments(name, tame(values[np.isfinite(values)]))
    for place, (name, values) in enumerate(named[:_ALIKE]):
        for other, others in named[place + 1 : _ALIKE]:
            if values.shape == others.shape and np.isfinite(values).all() and np.isfinite(others).all():
                found[f"product of {name} and {other}"] = float(tame(values) @ tame(others))
                found[f"distance of {name} and {other}"] = float(np.linalg.norm(tame(values) - tame(others)))
    return found


def _moments(name: str, values: Array) -> dict[str, float]:
    if not len(values):
        values = np.zeros(1)
    return {
        f"norm of {name}": float(np.linalg.norm(values)),
        f"mean of {name}": float(values.mean()),
        f"largest of {name}": float(values.max()),
        f"least of {name}": float(values.min()),
    }


def lowest_bits(values: Array) -> Array:
    """The position of each number's lowest set bit: private sums with noise may round differently there."""
    mantissa, exponent = np.frexp(np.nan_to_num(values, posinf=0.0, neginf=0.0))
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    lowest = np.log2(np.maximum(whole & -whole, 1))
    return np.asarray(np.where(whole == 0, 0.0, exponent - 53 + lowest))


def separating_columns(values: Array, arms: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    """The columns in which the arms differ most, relative to their spread."""
    return np.argsort(-np.abs(_separation(values, arms)), kind="stable")[:most]


def fitted(columns: Array, summaries: Array, labels: list[str], arms: NDArray[np.bool_]) -> list[Statistic]:
    """Statistics of rows that hold an output's numbers and then its summaries; scores are higher in the second arm.

    Labels name the columns, then the summaries.
    """
    width = columns.shape[1]
    features = np.column_stack([columns, summaries])
    found: list[Statistic] = []
    order = separating_columns(columns, arms, _COLUMNS[-1])
    single = separating_columns(features, arms, _SINGLE)
    for place in single:
        sign = np.sign(_separation(features[:, [place]], arms)[0]) or 1.0
        found.append((labels[place], _column(int(place), float(sign))))
    for least, more in zip((0, *_COLUMNS), _COLUMNS, strict=False):
        if len(order) > least:
            found += _along_means(features, order[:more], arms)
    for place, other in _used_twice(columns, order[:_PAIRS], arms):
        found.append(_residual(features, place, other, labels, arms))
    for ridge in _RIDGES:
        found.append(_discriminant(features, order[:_FULL], arms, ridge))
    found.append(_trees(features, np.unique([*order[:_TREES], *single, *range(width, features.shape[1])]), arms))
    return found


def fitted_on_low_bits(columns: Array, labels: list[str], arms: NDArray[np.bool_]) -> list[Statistic]:
    """Statistics of the lowest bits of an output's first numbers, where floating-point noise leaks."""

    def each(rows: Array) -> Array:
        return lowest_bits(rows[:, : min(_BITS, columns.shape[1])])

    if not columns.shape[1]:
        return []
    bits = each(columns)
    single = [(int(place), _separation(bits[:, [place]], arms)[0]) for place in separating_columns(bits, arms, _SINGLE)]
    found = [(f"lowest bit of {labels[place]}", _low_bit(place, np.sign(by) or 1.0)) for place, by in single]
    _, trees = _trees(bits, np.arange(bits.shape[1]), arms)
    return [*found, (f"boosted trees on the lowest bits of {bits.shape[1]} numbers", lambda rows: trees(each(rows)))]


def _low_bit(place: int, sign: float) -> Callable[[Array], Array]:
    return lambda rows: sign * lowest_bits(rows[:, place])


def _separation(features: Array, arms: NDArray[np.bool_]) -> Array:
    """The difference of the arms' means in standard errors; huge where the means differ and nothing varies."""
    one, other = features[arms], features[~arms]
    gap = one.mean(0) - other.mean(0)
    error = np.sqrt(one.var(0) / len(one) + other.var(0) / len(other))
    floor = 1e-12 * (np.abs(one).mean(0) + np.abs(other).mean(0)) + 1e-300
    return np.asarray(np.where(np.abs(gap) > floor, gap / np.maximum(error, floor), 0.0))


def _column(place: int, sign: float) -> Callable[[Array], Array]:
    return lambda rows: sign * rows[:, place]


def _along_means(features: Array, some: NDArray[np.int64], arms: NDArray[np.bool_]) -> list[Statistic]:
    """Likelihood ratios as if numbers were independent and normal: with one variance, and with one for each arm."""
    one, other = features[arms][:, some], features[~arms][:, some]
    means = one.mean(0), other.mean(0)
    floor = 1e-9 * (np.abs(means[0]) + np.abs(means[1])) + 1e-150
    variance = np.maximum((one.var(0) + other.var(0)) / 2, floor**2)
    each = [np.maximum(arm.var(0), 1e-3 * variance) for arm in (one, other)]
    weights = (means[0] - means[1]) / variance

    def quadratic(rows: Array) -> Array:
        distances = [np.square(rows[:, some] - mean) / spread for mean, spread in zip(means, each, strict=True)]
        return np.asarray((distances[1] - distances[0]).sum(1))

    return [
        (f"difference of the means of {len(some)} numbers", lambda rows: np.asarray(rows[:, some] @ weights)),
        (f"means and variances of {len(some)} numbers", quadratic),
    ]


def _used_twice(columns: Array, some: NDArray[np.int64], arms: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Pairs of numbers with the same noise, up to a factor."""
    centred = columns[:, some].copy()
    for arm in (arms, ~arms):
        centred[arm] -= centred[arm].mean(0)
    lengths = np.linalg.norm(centred, axis=0)
    moving = lengths > 1e-12 * (1e-150 + np.abs(columns[:, some]).max(0, initial=0.0))
    some, centred = some[moving], centred[:, moving] / lengths[moving]
    alike = np.argwhere(np.triu(np.abs(centred.T @ centred) > 1 - _EXACT, 1))
    return [(int(some[left]), int(some[right])) for left, right in alike[:_SINGLE]]


def _residual(features: Array, place: int, other: int, labels: list[str], arms: NDArray[np.bool_]) -> Statistic:
    pair = features[:, [place, other]].copy()
    for arm in (arms, ~arms):
        pair[arm] -= pair[arm].mean(0)
    factor = float(pair[:, 0] @ pair[:, 1] / (pair[:, 1] @ pair[:, 1]))
    sign = np.sign(_separation((features[:, place] - factor * features[:, other])[:, None], arms)[0]) or 1.0
    name = f"{labels[place]} less {factor:.4g} times {labels[other]}, whose noise is the same"
    return name, lambda rows: np.asarray(sign * (rows[:, place] - factor * rows[:, other]))


def _discriminant(features: Array, some: NDArray[np.int64], arms: NDArray[np.bool_], ridge: float) -> Statistic:
    """Fisher's linear discriminant, with correlations: the direction that separates the means most for the spread."""
    rows = features[:, some].copy()
    scale = np.maximum(np.abs(rows).max(0, initial=0.0), 1e-150)
    rows /= scale
    gap = rows[arms].mean(0) - rows[~arms].mean(0)
    for arm in (arms, ~arms):
        rows[arm] -= rows[arm].mean(0)
    deviations = np.maximum(rows.std(0), 1e-12)
    rows, gap, scale = rows / deviations, gap / deviations, scale * deviations
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows) if rows.size else np.zeros((0, 0)))
    weights = vectors @ ((vectors.T @ gap) / (np.maximum(values, 0) + ridge)) / scale
    return f"linear discriminant of {len(some)} numbers", lambda rows: np.asarray(rows[:, some] @ weights)


def _trees(features: Array, some: NDArray[np.int64], arms: NDArray[np.bool_]) -> Statistic:
    from sklearn.ensemble import HistGradientBoostingClassifier

    trees = HistGradientBoostingClassifier(max_iter=40, max_depth=3, min_samples_leaf=5, random_state=0)
    trees.fit(features[:, some], arms)
    return "boosted trees", lambda rows: np.asarray(trees.decision_function(rows[:, some]), dtype=np.float64)
