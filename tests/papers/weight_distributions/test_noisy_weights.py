"""A training at noisy weights is kept under its choices: an interrupted reproduction resumes."""

from dataclasses import replace
from pathlib import Path

import pytest

from sordino.papers.items import reproduce
from sordino.papers.trials import Experiment, TrialStore
from sordino.papers.weight_distributions import noisy_weights
from sordino.papers.weight_distributions.networks import NETWORKS
from sordino.papers.weight_distributions.noisy_weights import DEVIATIONS, NoisyWeightsTrial, trial_of

SMALL = NoisyWeightsTrial("LeNet-300-100", 0.1, epochs=2, looks=2, records=96, test=40)


def test_a_trial_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first = SMALL.run(said.append, TrialStore(tmp_path))
    assert said == [f"LeNet-300-100 at σ=0.1, 2 epochs, seed 0: {at}" for at in ("features", *_epochs())]
    assert first["n"] == 96
    assert [point["epoch"] for point in first["curve"]] == pytest.approx([2 / 3, 1, 5 / 3, 2])
    assert first["accuracy"] == first["curve"][-1]["sampled"]
    assert first["means"] == first["curve"][-1]["means"]
    monkeypatch.setattr(NoisyWeightsTrial, "compute", None)
    assert SMALL.run(store=TrialStore(tmp_path)) == first
    with pytest.raises(TypeError):
        replace(SMALL, seed=1).run(store=TrialStore(tmp_path))


def _epochs() -> list[str]:
    return [f"epoch {done} of 2" for done in ("0.7", "1.0", "1.7", "2.0")]


def test_an_interrupted_reproduction_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, calls = noisy_weights.train_noisy, []

    def stopping(*arguments: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return train(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(noisy_weights, "train_noisy", stopping)
    experiment = Experiment(quick=True, store=TrialStore(tmp_path / "trials"))
    with pytest.raises(KeyboardInterrupt):
        reproduce("weight-distributions", "table-1", experiment, tmp_path)
    record = reproduce("weight-distributions", "table-1", experiment, tmp_path)
    assert len(calls) == 7 + 24
    assert len(record.rows) == len(record.trials) == 30


def test_other_choices_make_other_trials() -> None:
    trials = [SMALL, replace(SMALL, subject="BN-LeNet-300-100"), replace(SMALL, deviation=0.2), replace(SMALL, seed=1)]
    assert len({trial.key for trial in trials}) == 4


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    SMALL.run(store=TrialStore(tmp_path))
    (path,) = tmp_path.glob("*/result.json")
    path.write_text("{")
    with pytest.raises(ValueError, match=r"result\.json is damaged"):
        SMALL.run(store=TrialStore(tmp_path))


def test_the_rate_grows_with_the_noise() -> None:
    rates = [replace(SMALL, deviation=deviation).learning_rate for deviation in DEVIATIONS]
    assert rates == pytest.approx([0.001, 0.001, 0.01, 0.1, 0.2])


def test_what_is_reduced_is_said() -> None:
    reduced, full = Experiment(), Experiment(full=True)
    assert reduced.shortfall("3 epochs", of=10, all=1) == "3 epochs; 1 seed for all, not 10"
    assert full.shortfall("3 epochs", of=10, all=1) is None
    four = replace(full, seeds=4)
    assert four.shortfall("3 epochs", always="subset", of=10, all=1) == "subset; 4 seeds for all, not 10"
    assert trial_of(full, "BN-ResNet-18", 1.0).records is None
    assert trial_of(reduced, "BN-ResNet-18", 1.0).records == 5000
    for subject in NETWORKS:
        assert trial_of(replace(reduced, quick=True), subject, 1.0).records == 64
