"""Statistics of a run are told once: charged first, kept, read again, and never drawn a second time."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.budget import Ledger, cost
from sordino.mechanisms.moments import ChannelMoments
from sordino.mechanisms.thresholds import ThresholdQuantiles
from sordino.training import Run, normalising
from sordino.training.run import RunError

MOMENTS = ChannelMoments(2.0, 4.0, noise_multiplier=2.0)


def features(n: int = 2500) -> np.ndarray:
    return np.random.default_rng(0).normal(0.5, 2.0, size=(n, 3, 2, 2)).astype(np.float32)


def test_they_are_told_once_and_then_read(tmp_path: Path) -> None:
    run, ledger = Run.at(tmp_path), Ledger()
    first = normalising.statistics(run, MOMENTS, features(), ledger, seed=None)
    key = run.private / "normalisation.json"
    key.write_text("left by a kill")
    again = normalising.statistics(run, MOMENTS, features(), ledger, seed=None)
    assert first == again
    assert not key.exists()
    assert [entry.event for entry in ledger.entries] == [MOMENTS.event]
    assert first.floor == MOMENTS.noise_of_mean_square(2500)


def test_a_run_killed_before_they_are_kept_repeats_them_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ledger = Run.at(tmp_path), Ledger()
    told: list[dict[str, torch.Tensor]] = []

    def killed(path: Path, tensors: dict[str, torch.Tensor], facts: object) -> None:
        told.append(tensors)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run, "write_tensors", killed)
        with pytest.raises(KeyboardInterrupt):
            normalising.statistics(run, MOMENTS, features(), ledger, seed=None)
    with pytest.raises(RunError, match="begin a new run"):  # with other data it would be a second release
        normalising.statistics(run, MOMENTS, features()[::-1], ledger, seed=None)
    again = normalising.statistics(run, MOMENTS, features(), ledger, seed=None)
    assert again.mean == tuple(told[0]["mean"].tolist())
    assert again.variance == tuple(told[0]["variance"].tolist())
    assert len(ledger.entries) == 1
    assert not list(run.private.glob("*.json"))  # the key is gone


def test_statistics_that_were_paid_for_and_lost_are_not_drawn_again(tmp_path: Path) -> None:
    run, ledger = Run.at(tmp_path), Ledger()
    normalising.statistics(run, MOMENTS, features(), ledger, seed=None)
    run.normalisation.unlink()
    for key in (None, "no JSON", '{"secret": 7}', '{"secret": "00"}'):
        if key is not None:
            (run.private / "normalisation.json").write_text(key)
        with pytest.raises(RunError, match="begin a new run"):
            normalising.statistics(run, MOMENTS, features(), ledger, seed=None)
    assert len(ledger.entries) == 1


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    run = Run.at(tmp_path)
    run.write_tensors(run.normalisation, {"mean": torch.zeros(2)}, {})
    with pytest.raises(RunError, match="statistics"):
        normalising.read(run)


def test_what_comes_out_is_near_mean_zero_and_variance_one(tmp_path: Path) -> None:
    wide = ChannelMoments(20.0, 60.0, noise_multiplier=0.5)
    scale = normalising.statistics(Run.at(tmp_path), wide, features(), Ledger(), seed=1)
    found = normalising.standardised(scale, features())
    assert found.dtype == np.float32
    assert np.abs(found.mean((0, 2, 3))).max() < 0.05
    assert np.abs(found.var((0, 2, 3)) - 1).max() < 0.1
    assert np.array_equal(normalising.standardised(None, features()), features())


THRESHOLDS = ThresholdQuantiles((0.1, 10.0), (0.1, 100.0), epsilon=0.5, noise_multiplier=2.0)


def test_thresholds_by_private_quantiles_are_planned_and_charged_beside_the_moments(tmp_path: Path) -> None:
    ledger = Ledger(8.0, 1e-5, planned=normalising.planned(THRESHOLDS))
    scale = normalising.statistics(Run.at(tmp_path), THRESHOLDS, features(), ledger, seed=None)
    assert [entry.what for entry in ledger.entries] == [normalising.THRESHOLDS, normalising.WHAT]
    assert not ledger.adaptive
    spent = normalising.spent_before(THRESHOLDS)
    assert spent is not None
    assert ledger.epsilon() == pytest.approx(cost(spent, 1e-5).epsilon, rel=1e-9)
    # The median norm of an example's mean squares is about 7.5, and half of the examples are cut to it.
    assert 0.5 < scale.floor / (2.0 * 7.5 / 2500) < 2
    found = normalising.standardised(scale, features())
    assert np.abs(found.mean((0, 2, 3))).max() < 0.5


def test_a_run_killed_after_its_thresholds_repeats_them_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = normalising.statistics(Run.at(tmp_path / "whole"), THRESHOLDS, features(), Ledger(), seed=5)
    run, ledger = Run.at(tmp_path / "killed"), Ledger()
    with monkeypatch.context() as patched:
        patched.setattr(ChannelMoments, "release", _killed)
        with pytest.raises(KeyboardInterrupt):
            normalising.statistics(run, THRESHOLDS, features(), ledger, seed=5)
    assert [entry.what for entry in ledger.entries] == [normalising.THRESHOLDS]
    with pytest.raises(RunError, match="begin a new run"):
        normalising.statistics(run, THRESHOLDS, features()[::-1], ledger, seed=5)
    assert normalising.statistics(run, THRESHOLDS, features(), ledger, seed=5) == whole
    assert [entry.what for entry in ledger.entries] == [normalising.THRESHOLDS, normalising.WHAT]


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
