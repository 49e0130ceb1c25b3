"""Noise on a public grid: exactly its law, and nothing of the sum in its last bits."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from numpy.typing import NDArray
from scipy import stats

from sordino.budget import Gaussian, Laplace, Ledger
from sordino.data.samplers import PoissonSampler
from sordino.mechanisms import exact, gaussian
from sordino.mechanisms.contingency import PairTables
from sordino.mechanisms.gaussian import clipped_gaussian_sum
from sordino.mechanisms.moments import ChannelMoments, SecondMoments, ThresholdQuantiles
from sordino.mechanisms.streams import Stream, Streams
from sordino.mechanisms.trials import noisy_accuracy, uncharged_accuracy
from sordino.training.convex.linear_regression import LinearPlan, fit_linear
from sordino.training.convex.perturbations import GaussianOutput
from sordino.training.convex.plan import LogisticPlan
from sordino.training.plan import Plan, QuantileClip

LAWS = {"normal": (exact._NORMAL, stats.norm), "laplace": (exact._LAPLACE, stats.laplace)}


def keyed(step: int) -> np.random.Generator:
    return Streams(bytes(range(16))).generator(Stream.NOISE, step)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("scale", "place"), [(0.4, 0.0), (0.7, 0.3), (2.3, 0.0), (2.3, 0.75)])
def test_the_rounded_law_is_the_real_ones_mass_in_each_cell(name: str, scale: float, place: float) -> None:
    law, real = LAWS[name]
    drawn = exact.rounded(keyed(int(10 * scale)), np.full(100_000, place), scale, law)
    cells = np.arange(-60, 61)
    mass = real.cdf((cells + 0.5 - place) / scale) - real.cdf((cells - 0.5 - place) / scale)
    seen = np.array([np.count_nonzero(drawn == cell) for cell in cells])
    enough = mass * len(drawn) > 10
    rest = seen[~enough].sum(), mass[~enough].sum() * len(drawn)
    observed, expected = np.append(seen[enough], rest[0]), np.append(mass[enough] * len(drawn), rest[1])
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("scale", [0.3, 10.0, 2.0**20, 1.9 * 2**20])
def test_many_digits_decide_as_double_precision_does(name: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    law, places = LAWS[name][0], np.linspace(0, 1, 300)
    fast = exact.rounded(keyed(7), places, scale, law)
    monkeypatch.setattr(exact, "_ERROR", 1.0)  # nothing is beyond doubt
    assert np.array_equal(exact.rounded(keyed(7), places, scale, law), fast)


class Scripted:
    """First bits as given, and what comes after them."""

    def __init__(self, bits: list[int], later: bytes) -> None:
        self.bits, self.later = np.array(bits, dtype=np.uint64), later

    def integers(self, *arguments: Any, **named: Any) -> NDArray[np.uint64]:
        return self.bits

    def bytes(self, count: int) -> bytes:
        return self.later[:1] * count


@pytest.mark.parametrize("name", LAWS)
def test_bits_beyond_the_first_64_decide_where_those_end_on_a_boundary(name: str) -> None:
    law, scale, cell = LAWS[name][0], 3.0, 4
    with mp.workprec(200):
        first = int(mp.floor(law.tail(mpf(cell + 0.5) / scale) * 2**63))
    found = [
        exact.rounded(Scripted([first << 1 | sign], later), np.zeros(1), scale, law)[0]  # type: ignore[arg-type]
        for sign in (0, 1)
        for later in (b"\xff", b"\x00")
    ]
    assert found == [cell, cell + 1, -cell, -cell - 1]


@pytest.mark.parametrize("name", LAWS)
def test_a_far_tail_is_drawn_from_further_bits(name: str) -> None:
    law, real = LAWS[name]
    scripted = Scripted([0, 1, 2, 2 * 12345], b"\x80")
    found = exact.rounded(scripted, np.zeros(4), 1000.0, law)  # type: ignore[arg-type]
    middle = 0.5 / 2**63 * (1 + 2.0**-7)  # the later bits begin with 1000 0000
    assert abs(found[0]) == pytest.approx(-1000 * real.ppf(middle / 2), rel=1e-3)
    assert found[1] == -found[0]
    assert found[2] == pytest.approx(-1000 * real.ppf(1.5 / 2**64), rel=1e-2)
    assert found[3] == pytest.approx(-1000 * real.ppf(12345.5 / 2**64), abs=1)


@pytest.mark.parametrize("name", LAWS)
def test_double_precision_is_within_its_bound(name: str) -> None:
    """A hundredth of the error that the guard allows for."""
    law = LAWS[name][0]
    tails = np.concatenate([np.geomspace(2.0**-23, 1, 150), 1 - np.geomspace(2.0**-50, 0.5, 50)])
    with mp.workprec(120):
        for tail, found in zip(tails.tolist(), law.magnitude(tails).tolist(), strict=True):
            # P(|X| > t) falls from `tail` by more than its slope times the error.
            error = exact._ERROR / 100
            assert law.tail(mpf(found) + error) < tail < law.tail(mpf(found) - error) or found < error


@pytest.mark.parametrize(("name", "margin"), [("normal", 43), ("laplace", 7.9)])
def test_bits_that_are_left_out_are_within_the_bound_by_the_margin_that_is_stated(name: str, margin: float) -> None:
    law, error = LAWS[name][0], exact._ERROR / margin
    for first in (exact._LEAST, 3 * exact._LEAST, 2**50, 2**62):
        found = float(law.magnitude((np.float64(first) + 0.5) * 2.0**-63))
        with mp.workprec(120):
            assert law.tail(mpf(found) + error) < mpf(first) / 2**63
            assert mpf(first + 1) / 2**63 < law.tail(mpf(found) - error)


@given(st.integers(-(2**50), 2**50), st.floats(1e-3, 1e9), st.floats(1e-6, 1e6))
@settings(max_examples=50, deadline=None)
def test_sums_keep_their_value_and_lie_on_a_grid_of_unit_and_deviation_alone(
    total: int, relative: float, unit: float
) -> None:
    deviation = relative * unit
    first = exact.noisy_sum(keyed(1), np.array([total]), unit, deviation)
    other = exact.noisy_sum(keyed(1), np.array([0]), unit, deviation)
    assert abs(first[0] - total * unit) <= 7 * deviation + unit * (1 + abs(total) * 2.0**-50)
    assert abs(first[0] - other[0] - total * unit) <= max(unit, deviation * 2.0**-19) + unit * abs(total) * 2.0**-50


def release_counts(count: int, step: int) -> dict[str, NDArray[np.float64]]:
    """Many noisy counts of 0 or 1, by each mechanism that releases sums; all at a deviation of about 10."""
    ledger, width = Ledger(), 20_000
    streams = Streams(bytes([step] * 16))
    rows, ones = np.full((1, width), float(count)), np.full((1, 150), float(count))
    counts = np.full((2, 2), count)
    tables = PairTables((2, 2), 10.0)
    right = np.arange(256) < 100 + count

    def noise(place: int) -> np.random.Generator:
        return streams.generator(Stream.NOISE, place)

    scores: dict[str, Callable[[int], float]] = {
        "Gaussian score": lambda place: uncharged_accuracy(right, Gaussian(10.0), noise(place)),
        "Laplace score": lambda place: uncharged_accuracy(right, Laplace(10.0), noise(place)),
        "accuracy": lambda place: noisy_accuracy(
            right, 10.0, Ledger(), "score", "test", Streams(place.to_bytes(16, "little"))
        ),
    }
    generator = streams.generator(Stream.NOISE)
    return {
        "sum": clipped_gaussian_sum(rows, 256.0, 10 / 256, ledger, "sum", streams=streams),
        "tables": np.concatenate([tables.noised({(0, 1): counts}, generator)[0, 1].ravel() for _ in range(500)]),
        "moments": ChannelMoments(256.0, 256.0, 10 / 256).release(rows, rows, ledger, streams=streams)[0],
        "second moments": SecondMoments(16.0, 10 / 256).release(ones, ledger, streams=streams)[1][np.triu_indices(150)],
    } | {name: np.array([score(place) for place in range(1_000)]) * 256 for name, score in scores.items()}


def test_low_bits_do_not_tell_a_count_of_0_from_1() -> None:
    """Doubles added to a count give it away: near 0 only a count of 0 has bits below 2⁻⁵³, and many others like it.

    Here either count's releases are whole multiples of one public number, and those multiples' last bits are uniform.
    """
    none, one = release_counts(0, 1), release_counts(1, 2)
    for name in none:
        grid = 2.0**-20 if "score" in name or name in ("accuracy", "tables") else 2.0**-36
        for released in (none[name], one[name]):
            multiples = released / grid
            assert np.array_equal(multiples, np.rint(multiples)), name
            low = np.bincount((multiples / 2 ** _spare_bits(multiples)).astype(np.int64) % 16, minlength=16)
            assert stats.chisquare(low).pvalue > 1e-4, name


def _spare_bits(multiples: NDArray[np.float64]) -> int:
    """By how many bits the grid is coarser than the number that was tried."""
    whole = multiples.astype(np.int64)
    return int(min((value & -value).bit_length() - 1 for value in whole[whole != 0].tolist()))


def test_a_row_is_rounded_by_itself_and_never_grows() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 7)) * rng.lognormal(0, 2, (500, 1))
    rows[3] = np.nan
    total, unit = gaussian.clipped_sum(rows, 1.5)
    each = [gaussian.clipped_sum(row[None], 1.5)[0] for row in rows]
    assert np.array_equal(np.sum(each, axis=0), total)
    assert np.array_equal(gaussian.clipped_sum(rows[::-1], 1.5)[0], total)
    assert np.array_equal(gaussian.clipped_sum(np.asfortranarray(rows), 1.5)[0], total)
    for whole in each:
        assert sum(value**2 for value in whole.tolist()) <= 2**72  # the clip, squared, in whole numbers
    assert not each[3].any()
    kept = np.linalg.norm(rows, axis=1) < 1.5
    assert np.array(each)[kept] * unit == pytest.approx(rows[kept], abs=unit)
    for bits in (18, 36):
        lengths = (gaussian.whole_rows(rows, 1.5, bits).astype(object) ** 2).sum(axis=1)
        assert max(lengths) <= 4**bits
        assert max(lengths) >= 4**bits * (1 - 4 * sqrt(7) * 2.0**-bits)


def test_products_are_summed_exactly() -> None:
    rows = gaussian.whole_rows(np.random.default_rng(1).normal(size=(300, 3)), 1.0, gaussian.GRAM_BITS)
    whole = rows.astype(np.int64)
    assert np.array_equal(gaussian.gram_sum((part, part) for part in (rows[:100], rows[100:])), whole.T @ whole)


def test_more_records_than_whole_numbers_can_sum_are_refused_before_the_charge() -> None:
    ledger, rows = Ledger(), np.broadcast_to(np.zeros((1, 1)), (2**26, 1))
    with pytest.raises(ValueError, match="too many for one exact sum"):
        clipped_gaussian_sum(rows, 1.0, 1.0, ledger, "sum")
    with pytest.raises(ValueError, match="too many for one exact sum"):
        ChannelMoments(1.0, 1.0).release(rows, rows, ledger)
    with pytest.raises(ValueError, match="too many for one exact sum"):
        SecondMoments(1.0, 1.0).release(rows, ledger)
    assert ledger.entries == ()


@pytest.mark.parametrize(("unit", "scale"), [(0.0, 1.0), (1.0, 0.0), (1.0, np.inf), (np.nan, 1.0), (1.0, 1e30)])
def test_noise_without_a_scale_or_beyond_whole_numbers_is_refused(unit: float, scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale of noise|too large"):
        exact.noisy_sum(keyed(0), np.zeros(3, dtype=np.int64), unit, scale)


def test_noise_that_cannot_be_drawn_is_refused_before_the_charge() -> None:
    ledger, rows, codes = Ledger(), np.zeros((4, 2)), np.zeros((4, 3), dtype=np.int64)
    sums: list[Callable[[float], object]] = [
        lambda noise: clipped_gaussian_sum(rows, 1.0, noise, ledger, "sum"),
        lambda noise: clipped_gaussian_sum(rows, 1e-300, noise, ledger, "sum"),
        lambda noise: noisy_accuracy(rows[:, 0] > 0, noise, ledger, "accuracy", "train"),
        lambda noise: PairTables((2, 2, 2), noise).release(codes, ledger),
        lambda noise: PairTables((2, 2, 2), noise / 100, 1e-3).release(codes, ledger),
        lambda noise: SecondMoments(1.0, noise).release(rows, ledger),
        lambda noise: SecondMoments(1.0, noise, with_mean=True).release(rows, ledger),
        lambda noise: ChannelMoments(1.0, 1.0, noise).release(rows, rows, ledger),
        lambda noise: ThresholdQuantiles((0.1, 9.0), (0.1, 9.0), 1.0, noise_multiplier=noise).release(
            rows, rows, ledger
        ),
        lambda noise: fit_linear(LinearPlan(1.0, (0.0, 1.0), noise), rows, rows[:, 0], ledger),
        lambda noise: LogisticPlan(1.0, 1.0, GaussianOutput(noise), 1e-6).event,
        lambda noise: Plan(PoissonSampler(4, 2), 1.0, noise, 1, exact=True),
        lambda noise: Plan(PoissonSampler(4, 2), 1.0, 1.0, 1, QuantileClip(noise)),
    ]
    for release in sums:
        with pytest.raises(ValueError, match="is too large for sums in units"):
            release(1e30)
    with pytest.raises(ValueError, match="must be positive finite"):
        SecondMoments(1e200, 1.0)
    with pytest.raises(ValueError, match="is too small for sums"):
        exact.check_noise(1e300, 1e-300)
    assert ledger.entries == ()


@pytest.mark.parametrize("noised", [exact.noisy_counts, exact.laplace_counts])
def test_counts_that_do_not_fit_are_refused_and_not_wrapped(noised: Callable[..., NDArray[np.float64]]) -> None:
    most = 2**42 - 1
    assert noised(keyed(0), np.array([most, -most]), 1.0) == pytest.approx([most, -most], rel=1e-10)
    for count in (2**42, -(2**42), 2**43, 2**62):
        with pytest.raises(ValueError, match="counts must be below"):
            noised(keyed(0), np.array([0, count]), 1.0)
