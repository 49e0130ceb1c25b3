"""A training is a real run: charged to its budget, kept under all its choices, resumed where it was stopped."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.budget import Ledger, cost
from sordino.papers.privacy_aware import network_trials
from sordino.papers.privacy_aware.network_figures import price
from sordino.papers.privacy_aware.network_trials import (
    UNCLIPPED,
    NetworkTrial,
    best_rate,
    repeated,
    run_all,
    tune_rate,
    tuned,
)
from sordino.papers.trials import Experiment, TrialStore
from sordino.runs import Run
from sordino.training.dense import DenseNetwork
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
        run_all(Experiment(say=stop, store=stopped), trials)
    found, again = (run_all(Experiment(store=store), trials) for store in (whole, stopped))
    assert [result["trial"] for result in found] == [str(trial) for trial in trials]
    assert [result | {"seconds": 0} for result in again] == [result | {"seconds": 0} for result in found]
    seen = []
    for trial in trials:
        runs = [Run(tmp_path / folder / trial.key) for folder in ("whole", "stopped")]
        one, other = (run.read_tensors(run.model)[0] for run in runs)
        assert all(torch.equal(value, other[name]) for name, value in one.items())
        seen.append(one["1.weight"])
    assert not torch.equal(seen[0], seen[1])


def test_a_trial_is_trained_once_and_its_seeds_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(quick=True, store=TrialStore(tmp_path))
    (first,) = run_all(experiment, [TRIAL])
    assert [found["trial"] for found in experiment.ran.values()] == [first["trial"]]
    assert "curve" not in experiment.ran[TRIAL.quick().key]
    monkeypatch.setattr(NetworkTrial, "_result", None)
    assert run_all(experiment, [TRIAL]) == [first]
    others = [{"seed": 1}, {"learning_rate": 0.4}, {"network": "Location-30 FCN STW"}, {"l2_clip": 0.5}]
    for changes in others:
        with pytest.raises(TypeError):
            run_all(experiment, [replace(TRIAL, **changes)])
    assert [result["trial"] for result in repeated(experiment, TRIAL, 3)] == [first["trial"]]


def test_the_model_is_the_closed_form_one_and_the_optimiser_plain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []

    def fitting(plan: object, model: object, records: object, *, optimiser: object, **more: object) -> None:
        seen.extend([model, optimiser])
        raise KeyboardInterrupt

    monkeypatch.setattr("sordino.papers.privacy_aware.network_trials.fitting", fitting)
    with pytest.raises(KeyboardInterrupt):
        TRIAL.run(store=TrialStore(tmp_path))
    assert isinstance(seen[0], DenseNetwork)
    assert seen[1] == SGD(0.5)


TUNED = NetworkTrial("Location-30 FCN PAW", None, 0.1, 100, 500, noise_multiplier=2.0, seed=3)


def test_rates_are_chosen_on_held_out_records_with_the_trials_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NetworkTrial] = []

    def run_all(experiment: Experiment, trials: list[NetworkTrial]) -> list[dict[str, float]]:
        seen.extend(trials)
        return [{"score": 1 - abs(trial.learning_rate - 0.2)} for trial in trials]

    monkeypatch.setattr(network_trials, "run_all", run_all)
    assert tuned(Experiment(), TUNED, (0.1, 0.2, 0.5)) == replace(TUNED, learning_rate=0.2)
    assert [trial.learning_rate for trial in seen] == [0.1, 0.2, 0.5]
    for trial in seen:
        assert trial.validation == 401
        assert trial.noise_multiplier == 2.0
        assert trial.epochs == TUNED.epochs
        assert trial.seed not in range(100)
    seen.clear()
    regression = NetworkTrial("medical FCN 2×10", None, 0.1, noise_multiplier=2.0)
    least, tries = tune_rate(Experiment(), regression, (0.1, 0.2, 0.4), seeds=2)
    assert least == max(tries) == 3.2  # the error falls on and on
    assert [trial.learning_rate for trial in seen] == [0.1, 0.1, 0.2, 0.2, 0.4, 0.4, 0.8, 0.8, 1.6, 1.6, 3.2, 3.2]
    assert len({trial.seed for trial in seen}) == 2


@pytest.mark.parametrize(("best", "tried"), [(0.2, 3), (0.4, 4), (0.1, 4), (0.05, 5), (3.2, 6), (50.0, 6)])
def test_a_grid_goes_on_while_its_best_is_its_last(best: float, tried: int) -> None:
    asked: list[float] = []

    def scored(rates: Sequence[float]) -> list[float]:
        asked.extend(rates)
        return [-abs(np.log(rate / best)) for rate in rates]

    found, tries = best_rate((0.1, 0.2, 0.4), scored)
    assert found == pytest.approx(min(best, 3.2))
    assert sorted(tries) == sorted(asked)
    assert len(asked) == len(set(asked)) == tried


@pytest.mark.parametrize(
    "trial",
    [
        NetworkTrial("MNIST FCN PAW", 2.11, 0.1, seed=1),
        NetworkTrial("SMS RNN STW", 7.21, 1.0, epochs=10, seed=2),
        NetworkTrial("MNIST FCN 2048-256-64", None, 0.1, 100, 20.0, 2, 2.0, records=20_000, validation=5000, marks=100),
    ],
    ids=str,
)
def test_long_trainings_that_are_kept_beside_the_records_are_found(trial: NetworkTrial, tmp_path: Path) -> None:
    records = Path(__file__).parents[3] / "results" / "privacy-aware"
    assert trial.run(store=TrialStore(tmp_path, records))["trial"] == str(trial)
    assert not list(tmp_path.iterdir())
