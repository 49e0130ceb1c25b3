"""The three descents of LSR's Figure 1: priced as what they are, of equal noise, and trained once."""

from pathlib import Path

import numpy as np
import pytest

from sordino import models
from sordino.budget import Gaussian, Ledger, NonPrivate, cost
from sordino.papers.sampling_rates import BATCH, PARAMETERS, RECORDS, SIGMA, Descent, _as_found
from sordino.papers.trials import TrialStore
from sordino.training.large_rates import GradientSize, accounted_share


def test_added_noise_is_as_strong_as_that_of_a_draw() -> None:
    network = models.lsr_small_cnn()
    assert sum(weight.numel() for weight in network.parameters()) == PARAMETERS
    # In the mean of a batch, noise on the sum over all records weighs BATCH/RECORDS of noise on the sum of a batch.
    share = accounted_share(GradientSize(PARAMETERS), RECORDS, BATCH / RECORDS, SIGMA * BATCH / RECORDS)
    assert share == pytest.approx(0.5, abs=1e-3)


def test_the_noisy_descent_is_priced_as_full_batches_and_the_others_have_no_price() -> None:
    noisy = Descent("DP-GD", RECORDS, SIGMA, iterations=100).plan
    assert noisy.epsilon(1e-5) == pytest.approx(cost(Gaussian(SIGMA / 10), 1e-5).epsilon, rel=1e-6)
    assert Descent("GD", RECORDS).plan.step_event == NonPrivate()


def test_a_descent_is_trained_once_and_charged(tmp_path: Path) -> None:
    said: list[str] = []
    descent = Descent("SGD", 16, iterations=4, marks=2, records=64, tested=32)
    curve = descent.run(said.append, TrialStore(tmp_path))
    assert list(curve) == ["2", "4"]
    assert all(0 <= share <= 1 for both in curve.values() for share in both)
    (folder,) = tmp_path.iterdir()
    assert Ledger.open(folder / "ledger.json").epsilon(1e-5) == np.inf
    before = len(said)
    assert descent.run(said.append, TrialStore(tmp_path)) == curve
    assert len(said) == before


def test_what_the_paper_finds_is_looked_for() -> None:
    assert _as_found(0.78, 0.80, 0.795) == "here the first shows, the second shows"
    assert _as_found(0.80, 0.78, 0.55) == "here the first does not show, the second does not show"
