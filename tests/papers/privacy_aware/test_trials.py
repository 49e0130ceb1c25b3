"""A training is a real run: charged to its budget, kept under all its choices, resumed where it was stopped."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.budget import Ledger, cost
from sordino.papers.privacy_aware.trials import UNCLIPPED, NetworkTrial, price, repeated, results_of, run_all
from sordino.papers.trials import Experiment, TrialStore
from sordino.runs import Run
from sordino.training.dense import DenseTrainee
from sordino.training.optimisers import SGD

TRIAL = NetworkTrial("Location-30 FCN PAW", 3.0, 0.5, 40, 1, delta=1e-3, records=160, examined=50, marks=2)


def test_a_training_is_held_to_its_budget(tmp_path: Path) -> None:
    found = TRIAL.run(store=TrialStore(tmp_path))
    (folder,) = tmp_path.iterdir()
    ledger = Ledger.open(folder / "ledger.json")
    assert (ledger.terms.target_epsilon, ledger.terms.target_delta) == (3.0, 1e-3)
    assert 0.95 * 3 < found["epsilon"] <= 3
    assert found["epsilon"] == pytest.approx(ledger.epsilon())
    assert found["plan"] == TRIAL.plan(160).to_json()
    assert list(found["curve"]) == ["2", "4"]
    assert found["score"] == found["curve"]["4"]


def test_plain_training_promises_nothing(tmp_path: Path) -> None:
    trial = replace(TRIAL, epsilon=None, l2_clip=UNCLIPPED, adam=True)
    found = trial.run(store=TrialStore(tmp_path))
    (folder,) = tmp_path.iterdir()
    assert found["epsilon"] is None
    assert Ledger.open(folder / "ledger.json").epsilon(1e-3) == np.inf
    assert not trial.plan(160).private


def test_noise_given_is_the_noise(tmp_path: Path) -> None:
    found = replace(TRIAL, epsilon=None, noise_multiplier=2.5).run(store=TrialStore(tmp_path))
    assert found["plan"]["noise_multiplier"] == 2.5
    plan = TRIAL.plan(160)
    assert found["epsilon"] == pytest.approx(cost(replace(plan, noise_multiplier=2.5).event, 1e-3).epsilon)
    assert price(plan, 2, 1e-3) < price(plan, 4, 1e-3) == pytest.approx(plan.epsilon(1e-3))


def test_a_stopped_training_goes_on_to_the_same_score(tmp_path: Path) -> None:
    def stop(line: str) -> None:
        if "step 2 " in line:
            raise KeyboardInterrupt

    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        TRIAL.run(stop, TrialStore(tmp_path / "a"))
    again = TRIAL.run(said.append, TrialStore(tmp_path / "a"))
    assert "step 2 of 4" in said[1]
    assert again["score"] == TRIAL.run(store=TrialStore(tmp_path / "b"))["score"]


def test_trials_side_by_side_go_on_to_the_same_weights(tmp_path: Path) -> None:
    trials = [replace(TRIAL, seed=seed, learning_rate=rate) for seed, rate in ((0, 0.5), (1, 0.5), (2, 0.1))]

    def stop(line: str) -> None:
        if "step 2 " in line and "seed 1" in line:  # when the first has its checkpoint, and the third has not
            raise KeyboardInterrupt

    whole, stopped = TrialStore(tmp_path / "whole"), TrialStore(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        results_of(trials, stop, stopped)
    found, again = (results_of(trials, lambda line: None, store) for store in (whole, stopped))
    assert [result["trial"] for result in found] == [str(trial) for trial in trials]
    assert [result | {"seconds": 0} for result in again] == [result | {"seconds": 0} for result in found]
    seen = []
    for trial in trials:
        runs = [Run(tmp_path / folder / trial.key()) for folder in ("whole", "stopped")]
        one, other = (run.read_tensors(run.model)[0] for run in runs)
        assert all(torch.equal(value, other[name]) for name, value in one.items())
        seen.append(one["1.weight"])
    assert not torch.equal(seen[0], seen[1])


def test_a_trial_is_trained_once_and_its_seeds_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(quick=True, store=TrialStore(tmp_path))
    (first,) = run_all(experiment, [TRIAL])
    assert list(experiment.ran) == [first["trial"]]
    assert "curve" not in experiment.ran[first["trial"]]
    monkeypatch.setattr(NetworkTrial, "_result", None)
    assert run_all(experiment, [TRIAL]) == [first]
    others = [{"seed": 1}, {"learning_rate": 0.4}, {"network": "Location-30 FCN STW"}, {"l2_clip": 0.5}]
    for changes in others:
        with pytest.raises(TypeError):
            run_all(experiment, [replace(TRIAL, **changes)])
    assert [result["trial"] for result in repeated(experiment, TRIAL, 3)] == [first["trial"]]


def test_the_trainee_is_the_closed_form_one_and_the_optimiser_plain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []

    def fitting(run: object, plan: object, trainee: object, optimiser: object, ledger: object, **more: object) -> None:
        seen.extend([trainee, optimiser])
        raise KeyboardInterrupt

    monkeypatch.setattr("sordino.papers.privacy_aware.trials.fitting", fitting)
    with pytest.raises(KeyboardInterrupt):
        TRIAL.run(store=TrialStore(tmp_path))
    assert isinstance(seen[0], DenseTrainee)
    assert seen[1] == SGD(0.5)
