"""Noise without floating point's traces: sums on a public grid, with normal or Laplace noise that is rounded exactly.

A double that is drawn, scaled and added to a sum carries the sum in its last bits: not every double can come out of
every sum, and a count of 0 differs from 1 by what cannot be its noise (Mironov 2012). So what is released here is

    γ·round((x + X)/γ),  X ~ N(0, s²) or Laplace(b), γ a public grid,

with x a whole number of public units and the whole number round(…) drawn with exactly its probability. In theory that
is post-processing of x + X over the real numbers, so the events, RDP and PLD of the Gaussian and the Laplace mechanism
hold for it as they are: in any dimension, under subsampling and composition. (The discrete Gaussian of Canonne, Kamath
& Steinke 2020 shares the Gaussian's RDP, but in several dimensions has no simple PLD, and would be a new event.)

How it is exact: X is a function of a uniform number U of infinitely many random bits. The first 63 of them and a sign
give X in double precision, with an error below `_ERROR`·scale; wherever that leaves no doubt about the rounded
value it stands. Else more bits are drawn, and U is compared with the cell's ends in as many digits as it takes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, frexp, ldexp
from typing import Any

import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray
from scipy.special import ndtri

Whole = NDArray[np.int64]
Array = NDArray[np.float64]
Counts = NDArray[np.integer] | NDArray[np.float64]
"""Whole numbers, of whatever type."""

COUNT_UNIT = 2.0**-20
"""In which counts are summed: the grid of their noise is not coarser than that."""
_FINENESS = 20
"""The grid is 2⁻²⁰ to 2⁻¹⁹ of the noise's scale, or one unit where that is more."""
_ERROR = 2.0**-38
"""Of |X|/scale as computed from the first 63 bits of U, where U is at least 2⁻²³.

Most of it is the bits that are left out, which move U by half of 2⁻⁶³ from where it is taken to be: that is 2⁻⁴¹ for
Laplace noise, and 2⁻⁴¹/5.5 for normal noise, at U = 2⁻²³, and less elsewhere. So this is 8 times, or 44 times, as much.
Double precision adds less than a hundredth of it.
"""
_HAIR = 1 + 2.0**-50
"""The rounding of a scale in units must not make it smaller."""
_BLOCK = 2**18
_MOST_SHIFT = 62
_LEAST = 2**40
"""In units of 2⁻⁶³: a smaller U is a far tail, where its first bits say little."""


@dataclass(frozen=True)
class _Law:
    """A symmetrical law, of unit scale: where |X| passes its tail, and P(|X| > t) in high precision."""

    magnitude: Callable[[Any], Any]
    tail: Callable[[Any], Any]


_NORMAL = _Law(lambda u: -ndtri(u / 2), lambda t: mp.erfc(t / mp.sqrt(2)))
_LAPLACE = _Law(lambda u: -np.log(u), lambda t: mp.exp(-t))


def noisy_sum(generator: np.random.Generator, total: Whole, unit: float, deviation: float) -> Array:
    """A sum of so many units, with normal noise of this standard deviation in every coordinate, on a public grid.

    Guarantee: post-processing of unit·total + N(0, deviation²·I), exactly, whatever the sum; the grid is a function of
    unit and deviation alone. What one record moves unit·total by is for the caller to know.
    """
    return _noisy(generator, total, unit, deviation, _NORMAL)


def noisy_counts(generator: np.random.Generator, counts: Counts, deviation: float) -> Array:
    """Counts with normal noise of this standard deviation, on a public grid that is finer than 1: `noisy_sum`."""
    return _noisy(generator, counts, COUNT_UNIT, deviation, _NORMAL, round(1 / COUNT_UNIT))


def laplace_counts(generator: np.random.Generator, counts: Counts, scale: float) -> Array:
    """Counts with Laplace noise of this scale, on a public grid.

    Guarantee: post-processing of counts + Laplace(scale), exactly.
    """
    return _noisy(generator, counts, COUNT_UNIT, scale, _LAPLACE, round(1 / COUNT_UNIT))


def check_noise(unit: float, scale: float) -> None:
    """Refuse, before anything is charged, noise that cannot be added to sums in this unit."""
    _grid(unit, scale)


def check_count_noise(scale: float) -> None:
    """Refuse noise that `noisy_counts` and `laplace_counts` cannot draw."""
    _grid(COUNT_UNIT, scale)


def _grid(unit: float, scale: float) -> tuple[float, int]:
    """The scale in units, and by how many bits the grid is coarser than a unit."""
    if not (0 < unit < np.inf and 0 < scale < np.inf):
        raise ValueError(f"the unit and the scale of noise must be positive finite numbers, not {unit!r} and {scale!r}")
    relative = scale / unit * _HAIR
    shift = max(0, frexp(relative)[1] - 1 - _FINENESS)
    if shift >= _MOST_SHIFT or relative == np.inf:
        raise ValueError(f"noise of {scale:g} is too large for sums in units of {unit:g}: lower the noise multiplier")
    if relative == 0:
        raise ValueError(f"noise of {scale:g} is too small for sums in units of {unit:g}: raise the noise multiplier")
    return relative, shift


def _noisy(
    generator: np.random.Generator, total: Counts, unit: float, scale: float, law: _Law, times: int = 1
) -> Array:
    """A block after another, for little memory besides what comes and goes: totals are `times` as many units."""
    relative, shift = _grid(unit, scale)
    flat = np.ravel(total)
    most = 2**62 // times
    if times > 1 and flat.size and not -most < flat.min() <= flat.max() < most:
        raise ValueError(f"counts must be below {most:,}: more do not fit into whole numbers of 64 bits")
    noisy = np.empty(flat.shape)
    for start in range(0, len(flat), _BLOCK):
        units = flat[start : start + _BLOCK].astype(np.int64) * times
        cells = units >> shift
        rest = np.ldexp((units - (cells << shift)).astype(np.float64), -shift)
        noisy[start : start + _BLOCK] = cells + rounded(generator, rest, ldexp(relative, -shift), law)
    noisy *= unit * 2.0**shift
    return noisy.reshape(total.shape)


def rounded(generator: np.random.Generator, place: Array, scale: float, law: _Law = _NORMAL) -> Whole:
    """round(place + scale·X) for each of a row of places within [0, 1], with exactly the probabilities of the law."""
    bits = generator.integers(0, 2**64 - 1, place.shape, dtype=np.uint64, endpoint=True)
    first = bits >> np.uint64(1)
    sign = np.where(bits & np.uint64(1), -1.0, 1.0)
    found = law.magnitude((first.astype(np.float64) + 0.5) * 2.0**-63)
    found *= sign
    found *= scale
    found += place
    nearest = np.rint(found)
    found -= nearest
    # How near to the end of its cell a value may come without a doubt about which cell it is.
    guard = scale * _ERROR + 2.0**-40
    doubtful = (np.abs(found) >= 0.5 - guard) | (first < np.uint64(_LEAST))
    whole: Whole = np.asarray(nearest, dtype=np.int64)
    for at in np.flatnonzero(doubtful).tolist():
        whole[at] = _decided(int(first[at]), float(sign[at]), float(place[at]), scale, law, generator)
    return whole


def _decided(first: int, sign: float, place: float, scale: float, law: _Law, generator: np.random.Generator) -> int:
    """The same for one number whose first 63 bits are known, with as many more as it takes."""
    number, width = first, 63  # U lies between number and number + 1, in units of 2^−width

    def more() -> None:
        nonlocal number, width
        number, width = number << 64 | int.from_bytes(generator.bytes(8), "little"), width + 64

    def beyond(end: float) -> bool:
        """Whether place + sign·scale·|X| lies above the end of a cell."""
        while True:
            with mp.workprec(width + 64):
                distance = (mpf(end) - mpf(place)) / mpf(scale) * sign
                if distance <= 0:
                    return sign > 0
                tail, doubt = law.tail(distance), mpf(2) ** -(width + 32)
                if mpf(number) / mpf(2) ** width > tail + doubt:  # |X| is below the distance
                    return sign < 0
                if mpf(number + 1) / mpf(2) ** width < tail - doubt:
                    return sign > 0
            more()

    while number < 2**60:
        more()
    cell = floor(place + sign * scale * float(law.magnitude(number / 2**width)) + 0.5)
    while beyond(cell + 0.5):
        cell += 1
    while not beyond(cell - 0.5):
        cell -= 1
    return cell
