"""The classical bugs of differentially private programs, planted one by one: record and replay finds each of them.

The six are those of the audit of twelve libraries in Cebere et al. 2026, "Privacy in Theory, Bugs in Practice".
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sordino.budget import Gaussian, Ledger, Pure
from sordino.mechanisms import gaussian, quantile
from sordino.training import SGD, LinearClassifier, Plan, dpsgd, fit

from .playing import replayed
from .recorder import everywhere

Array = NDArray[np.float64]
CLIP, SIGMA, N = 2.0, 3.0, 60
Program = Callable[[Array, Ledger], Any]


def records() -> Array:
    return np.random.default_rng(5).uniform(0.5, 1.5, (N, 3))


def empty(at: int) -> Array:
    """A neighbour: one record zeroed out. A number that is missing makes a record empty everywhere in the library."""
    return np.where(np.arange(N)[:, None] == at, np.nan, records())


def mean(data: Array, ledger: Ledger) -> Array:
    """A correct program: bounds of a column, and a mean over the public number of records."""
    low = quantile.private_quantile(data[:, 0], 0.5, (0.0, 10.0), 1.0, ledger, "a median")
    total = gaussian.clipped_gaussian_sum(data, CLIP, SIGMA, ledger, "a sum")
    return total / len(data) - low


@pytest.mark.parametrize("other", [empty(0), empty(17)])
def test_a_correct_program_passes(other: Array) -> None:
    assert replayed(mean, records(), other) == []
    assert replayed(mean, other, records()) == []


def test_an_outlier_stays_within_the_clip() -> None:
    far = records()
    far[3] = 1e200
    assert replayed(mean, records(), far, apart=2) == []


def test_a_mean_with_the_private_number_of_records_is_found() -> None:
    def faulty(data: Array, ledger: Ledger) -> Array:
        present = np.isfinite(data).all(axis=1).sum()
        return gaussian.clipped_gaussian_sum(data, CLIP, SIGMA, ledger, "a sum") / present

    [found] = replayed(faulty, records(), empty(2))
    assert found.startswith("the two runs show")


def test_a_mechanism_that_divides_by_it_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gaussian.clipped_gaussian_sum

    @wraps(whole)
    def faulty(rows: Array, *more: Any, **named: Any) -> Array:
        return whole(rows, *more, **named) * N / np.isfinite(rows).all(axis=1).sum()

    everywhere(monkeypatch, whole, faulty)
    found = replayed(lambda data, ledger: gaussian.clipped_gaussian_sum(data, CLIP, SIGMA, ledger, "a"), *_neighbours())
    assert found == ["clipped_gaussian_sum: what it adds to its statistic depends on the records"]


def test_domains_inferred_from_the_records_are_found() -> None:
    def faulty(data: Array, ledger: Ledger) -> float:
        bounds = (float(np.nanmin(data)), float(np.nanmax(data)))
        return quantile.private_quantile(data[:, 0], 0.5, bounds, 1.0, ledger, "a median")

    far = records()
    far[4] = 40.0
    [found, *_] = replayed(faulty, records(), far, apart=2)
    assert "public parameters differ" in found


@pytest.mark.parametrize("times", [1, 2])
def test_a_release_repeated_but_charged_once_is_found(times: int) -> None:
    def faulty(data: Array, ledger: Ledger) -> list[Array]:
        ledger.spend(Gaussian(SIGMA), "a sum")
        notes = Ledger()
        return [gaussian.clipped_gaussian_sum(data, CLIP, SIGMA, notes, "a sum") for _ in range(times)]

    found = replayed(faulty, *_neighbours())
    assert any("happened 2 times, charged 1 times" in each for each in found) == (times == 2)


def test_a_release_before_its_charge_is_found() -> None:
    def faulty(data: Array, ledger: Ledger) -> Array:
        told = gaussian.clipped_gaussian_sum(data, CLIP, SIGMA, Ledger(), "a sum")
        ledger.spend(Gaussian(SIGMA), "a sum")
        return told

    assert any("happened 1 times, charged 0 times" in each for each in replayed(faulty, *_neighbours()))


def test_a_missing_number_that_spoils_a_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(rows: Array, l2_clip: float) -> Array:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.maximum(1.0, norms / l2_clip)

    everywhere(monkeypatch, gaussian.clip_rows, careless)
    found = replayed(mean, *_neighbours())
    assert "clipped_gaussian_sum: what it adds to its statistic depends on the records" in found
    assert replayed(mean, records(), np.where(records() > 1.4, 1.4, records()), apart=2 * N) == []  # not by chance


def test_a_missing_number_that_ends_a_program_is_found() -> None:
    def faulty(data: Array, ledger: Ledger) -> str:
        told = mean(data, ledger)
        return "refused: a number is missing" if np.isnan(data).any() else repr(told)

    [found] = replayed(faulty, *_neighbours())
    assert found.startswith("the two runs show")


def test_a_loop_that_stops_when_the_records_say_so_is_found() -> None:
    def faulty(data: Array, ledger: Ledger) -> list[Array]:
        return [
            gaussian.clipped_gaussian_sum(data, CLIP, SIGMA, ledger, "a sum")
            for _ in range(int(np.isfinite(data).all(axis=1).sum()))
        ]

    found = replayed(faulty, *_neighbours())
    assert f"{N - 1} releases, and {N} in the first run" in found


# In a training of the library's


def training(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """`fit` on a linear model: its weights as they are released."""

    def program(data: Array, ledger: Ledger) -> list[Any]:
        y = np.arange(N) % 2
        plan = Plan.calibrated(
            n=N, expected_batch_size=20, epochs=4, target_epsilon=6.0, target_delta=1e-3, l2_clip=0.05
        )
        model = LinearClassifier(data.shape[1], 2)
        records = data.astype(np.float32), y
        fit(plan, model, records, optimiser=SGD(0.5), ledger=ledger, run=tmp_path_factory.mktemp("fit") / "run")
        return [value.tolist() for _, value in sorted(model.weights().items())]

    return program


def test_a_training_passes(tmp_path_factory: pytest.TempPathFactory) -> None:
    for place in (0, 7, 31):
        assert replayed(training(tmp_path_factory), records(), empty(place)) == []


def test_too_little_noise_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = dpsgd.noisy_mean

    def faulty(sums: Any, l2_clip: float, plan: Plan, *more: Any) -> Any:
        return whole(sums, l2_clip, replace(plan, noise_multiplier=0.5 * plan.noise_multiplier), *more)

    monkeypatch.setattr(dpsgd, "noisy_mean", faulty)
    found = replayed(training(tmp_path_factory), *_neighbours())
    assert any("times what was charged for" in each for each in found)


def test_a_clip_larger_than_declared_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = LinearClassifier.clipped_sum

    def faulty(self: LinearClassifier, records: Any, indices: Any, l2_clip: float, *more: Any) -> Any:
        return whole(self, records, indices, 2 * l2_clip, *more)

    monkeypatch.setattr(LinearClassifier, "clipped_sum", faulty)
    found = replayed(training(tmp_path_factory), *_neighbours())
    assert any("the records move the statistic by" in each for each in found)


def test_a_sum_divided_by_the_batch_that_was_drawn_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole, size = dpsgd.noisy_mean, torch.tensor(0)
    whole_sum = LinearClassifier.clipped_sum

    def counted(self: LinearClassifier, *more: Any, **named: Any) -> Any:
        found = whole_sum(self, *more, **named)
        size.fill_(int(torch.isfinite(found.norms).sum()))
        return found

    def faulty(sums: Any, l2_clip: float, plan: Plan, *more: Any) -> Any:
        told = whole(sums, l2_clip, plan, *more)
        return {name: value * 20 / max(1, int(size)) for name, value in told.items()}

    monkeypatch.setattr(LinearClassifier, "clipped_sum", counted)
    monkeypatch.setattr(dpsgd, "noisy_mean", faulty)
    found = replayed(training(tmp_path_factory), *_neighbours())
    assert "release: what it adds to its statistic depends on the records" in found


def test_an_epsilon_that_was_not_charged_is_found() -> None:
    def faulty(data: Array, ledger: Ledger) -> float:
        ledger.spend(Pure(0.1), "a median")
        return quantile.private_quantile(data[:, 0], 0.5, (0.0, 10.0), 1.0, Ledger(), "a median")

    assert any("charged 0 times" in each for each in replayed(faulty, *_neighbours()))


def _neighbours() -> tuple[Array, Array]:
    return records(), empty(2)
