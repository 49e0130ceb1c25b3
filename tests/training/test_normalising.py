"""Statistics of a run are released once: charged first, kept, read again, and never drawn a second time."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.budget import BudgetExceeded, Gaussian, Ledger, cost
from sordino.mechanisms.moments import ChannelMoments, ThresholdQuantiles
from sordino.runs import Run, RunError
from sordino.training import normalising

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
    with pytest.raises(RunError, match="other data"):  # with other data it would be a second release
        normalising.statistics(run, MOMENTS, features()[::-1], ledger, seed=None)
    again = normalising.statistics(run, MOMENTS, features(), ledger, seed=None)
    assert again.mean == tuple(told[0]["mean"].tolist())
    assert again.variance == tuple(told[0]["variance"].tolist())
    assert len(ledger.entries) == 1
    assert not list(run.private.glob("*.json"))  # the key is gone


def test_statistics_that_were_lost_with_their_key_are_drawn_from_new_noise_and_charged_again(tmp_path: Path) -> None:
    run, ledger = Run.at(tmp_path), Ledger()
    found = {normalising.statistics(run, MOMENTS, features(), ledger, seed=None)}
    run.normalisation.unlink()
    found.add(normalising.statistics(run, MOMENTS, features(), ledger, seed=None))
    assert len(found) == len(ledger.entries) == len({entry.run for entry in ledger.entries}) == 2


@pytest.mark.parametrize("content", ["no JSON", '{"secret": 7}', '{"secret": "00"}'])
def test_a_damaged_key_is_refused(tmp_path: Path, content: str) -> None:
    run, ledger = Run.at(tmp_path), Ledger()
    (run.private / "normalisation.json").write_text(content)
    with pytest.raises(RunError, match="damaged"):
        normalising.statistics(run, MOMENTS, features(), ledger, seed=None)
    assert not ledger.entries


def test_a_release_that_was_refused_is_never_paid_for_by_another_run(tmp_path: Path) -> None:
    ledger = Ledger(1.0, 1e-5, path=tmp_path / "shared.json")
    dear, cheap = ChannelMoments(2.0, 4.0, noise_multiplier=0.5), ChannelMoments(2.0, 4.0, noise_multiplier=8.0)
    asked, other = Run.at(tmp_path / "b"), Run.at(tmp_path / "a")
    for attempt in range(2):
        with pytest.raises(BudgetExceeded):
            normalising.statistics(asked, dear, features(), ledger, seed=None)
        assert not asked.normalisation.exists()
        assert not (asked.private / "normalisation.json").exists()  # a refusal deletes the new key
        if attempt == 0:
            normalising.statistics(other, cheap, features(), ledger, seed=None)
    assert [entry.event for entry in ledger.entries] == [cheap.event]


def test_runs_of_one_ledger_pay_one_by_one(tmp_path: Path) -> None:
    ledger = Ledger()
    for moments in (ChannelMoments(2.0, 4.0), THRESHOLDS):
        for name in "ab":
            normalising.statistics(
                Run.at(tmp_path / f"{name} {type(moments).__name__}"), moments, features(), ledger, seed=None
            )
    assert [entry.what for entry in ledger.entries].count(normalising.WHAT) == 4
    assert [entry.what for entry in ledger.entries].count(normalising.THRESHOLDS) == 2
    assert len({entry.run for entry in ledger.entries}) == 6


def test_statistics_count_only_beside_the_ledger_that_paid_for_them(tmp_path: Path) -> None:
    run, ledger = Run.at(tmp_path), Ledger()
    normalising.statistics(run, MOMENTS, features(), ledger, seed=None)
    other = Ledger()
    other.spend(MOMENTS.event, normalising.WHAT, run="another run")
    with pytest.raises(RunError, match="ledger"):
        normalising.statistics(run, MOMENTS, features(), other, seed=None)


def test_a_folder_of_an_earlier_version_resumes_and_its_key_alone_pays_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither entries nor files named their run.
    ledger = Ledger()
    ledger.spend(MOMENTS.event, normalising.WHAT)
    kept = Run.at(tmp_path / "kept")
    facts = {"floor": MOMENTS.noise_of_mean_square(2500)}
    told = {"mean": torch.zeros(3, dtype=torch.float64), "variance": torch.ones(3, dtype=torch.float64)}
    kept.write_tensors(kept.normalisation, told, facts)
    assert normalising.statistics(kept, MOMENTS, features(), ledger, seed=None).mean == (0.0, 0.0, 0.0)
    assert len(ledger.entries) == 1

    killed = Run.at(tmp_path / "killed")
    with monkeypatch.context() as patched:
        patched.setattr(killed, "write_tensors", _killed)
        with pytest.raises(KeyboardInterrupt):
            normalising.statistics(killed, MOMENTS, features(), Ledger(), seed=None)
    key = json.loads((killed.private / "normalisation.json").read_text())
    old = {"secret": key["secret"], "moments": key["plan"], "data": key["data"], "environment": key["environment"]}
    killed.write_private("normalisation.json", old)
    normalising.statistics(killed, MOMENTS, features(), ledger, seed=None)
    assert [bool(entry.run) for entry in ledger.entries] == [False, True]


def test_a_predictable_key_is_not_used_without_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, ledger = Run.at(tmp_path), Ledger()
    with monkeypatch.context() as patched:
        patched.setattr(ChannelMoments, "release", _killed)
        with pytest.raises(KeyboardInterrupt):
            normalising.statistics(run, MOMENTS, features(), ledger, seed=7)
    drawn = normalising.statistics(run, MOMENTS, features(), ledger, seed=None)
    seeded = normalising.statistics(Run.at(tmp_path / "seeded"), MOMENTS, features(), Ledger(), seed=7)
    assert drawn != seeded
    shared = Ledger()
    normalising.statistics(Run.at(tmp_path / "a"), MOMENTS, features(), shared, seed=7)
    with pytest.raises(RunError, match="another seed"):
        normalising.statistics(Run.at(tmp_path / "b"), MOMENTS, features(), shared, seed=7)


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
    with pytest.raises(RunError, match="other data"):
        normalising.statistics(run, THRESHOLDS, features()[::-1], ledger, seed=5)
    assert normalising.statistics(run, THRESHOLDS, features(), ledger, seed=5) == whole
    assert [entry.what for entry in ledger.entries] == [normalising.THRESHOLDS, normalising.WHAT]


@pytest.mark.parametrize("epsilon", [0.01, 50.0])
def test_a_wrong_ledger_neither_ends_nor_pays_for_a_run_that_has_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epsilon: float
) -> None:
    run, right = Run.at(tmp_path / "run"), Ledger(50.0, 1e-5, path=tmp_path / "right.json")
    with monkeypatch.context() as patched:
        patched.setattr(run, "write_tensors", _killed)
        with pytest.raises(KeyboardInterrupt):
            normalising.statistics(run, MOMENTS, features(), right, seed=None)
    wrong = Ledger(epsilon, 1e-5, path=tmp_path / "wrong.json")
    with pytest.raises(RunError, match="pass the ledger it was started with"):
        normalising.statistics(run, MOMENTS, features(), wrong, seed=None)
    assert not wrong.entries
    normalising.statistics(run, MOMENTS, features(), right, seed=None)
    assert len(right.entries) == 1


def test_a_refusal_deletes_only_a_key_that_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, right = Run.at(tmp_path / "run"), Ledger()  # in memory: no mark says which one paid
    with monkeypatch.context() as patched:
        patched.setattr(run, "write_tensors", _killed)
        with pytest.raises(KeyboardInterrupt):
            normalising.statistics(run, MOMENTS, features(), right, seed=None)
    with pytest.raises(BudgetExceeded):
        normalising.statistics(run, MOMENTS, features(), Ledger(0.01, 1e-5), seed=None)
    normalising.statistics(run, MOMENTS, features(), right, seed=None)
    assert len(right.entries) == 1


@pytest.mark.parametrize("drawn", [False, True])
def test_thresholds_are_not_paid_for_where_the_moments_would_be_refused(tmp_path: Path, drawn: bool) -> None:
    dear, ledger = replace(THRESHOLDS, epsilon=0.05, noise_multiplier=1.0), Ledger(1.0, 1e-5)
    if drawn:
        ledger.spend(Gaussian(50.0), "something before")
    before = ledger.epsilon(), ledger.plan
    for _ in range(3):
        with pytest.raises(BudgetExceeded, match="thresholds of the normalisation and normalisation"):
            normalising.statistics(Run.at(tmp_path), dear, features(), ledger, seed=None)
    assert (ledger.epsilon(), ledger.plan) == before
    cheap = replace(dear, noise_multiplier=30.0)  # the folder and the budget are free
    normalising.statistics(Run.at(tmp_path), cheap, features(), ledger, seed=None)
    assert ledger.adaptive == drawn


def test_thresholds_that_are_paid_for_are_kept_when_the_moments_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ledger = Run.at(tmp_path), Ledger(8.0, 1e-5)

    def refused(*_: object, **__: object) -> None:
        raise BudgetExceeded("as if another process had been faster")

    with monkeypatch.context() as patched:
        patched.setattr(ChannelMoments, "release", refused)
        for _ in range(3):
            with pytest.raises(BudgetExceeded):
                normalising.statistics(run, THRESHOLDS, features(), ledger, seed=None)
    assert [entry.what for entry in ledger.entries] == [normalising.THRESHOLDS]
    normalising.statistics(run, THRESHOLDS, features(), ledger, seed=None)
    assert [entry.what for entry in ledger.entries] == [normalising.THRESHOLDS, normalising.WHAT]


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_no_warning_shows_an_example_that_overflows() -> None:
    rows = np.zeros((2, 3, 2, 2), np.float32)
    rows[1] = 3e38
    means, squares = normalising._channel_means(rows)
    assert np.isfinite(means[0]).all()
    assert np.isinf(squares[1]).all()
