"""A trial is trained once, resumes after a kill, and is priced for what it does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sordino.budget import Ledger
from sordino.data import DataError, load
from sordino.papers import recipe_trials as trials
from sordino.papers.recipe_trials import LastIterateTrial, RecipeTrial, settings
from sordino.papers.trials import TrialStore
from sordino.runs import Run, RunError, environment, key
from sordino.training import Shifts

MOVED = settings(epochs=60, shifts=Shifts(views=2, most=1))
SMALL = RecipeTrial("digits", "scatter-linear", 1, delta=1e-4, settings=settings(epochs=6), marks=3)


def test_a_trial_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first = SMALL.run(said.append, TrialStore(tmp_path))
    assert said[0] == "scatter-linear on digits ε=3 epochs=6 seed 1: features"
    assert said[-1].endswith("of 34")
    assert len(said) > 3
    monkeypatch.setattr(RecipeTrial, "_train", None)
    assert SMALL.run(said.append, TrialStore(tmp_path)) == first
    assert SMALL.run(store=TrialStore(tmp_path)) == first
    assert 2.99 < first["sound"]["epsilon"] <= 3
    assert [point["accuracy"] for point in first["curve"]][-1] == first["accuracy"]
    budgets = [point["epsilon"] for point in first["curve"]]
    assert budgets == sorted(budgets)
    assert budgets[-1] == first["sound"]["epsilon"]


def test_the_ledger_of_a_trial_holds_its_price(tmp_path: Path) -> None:
    trial = replace(SMALL, dataset="mnist-5k", delta=1e-5, records=2000, settings=settings(epochs=2))
    result = trial.run(store=TrialStore(tmp_path))
    (folder,) = tmp_path.iterdir()
    ledger = Ledger.open(folder / "ledger.json")
    assert [entry.what for entry in ledger.entries] == ["normalisation", "training"]
    assert ledger.epsilon() == pytest.approx(result["sound"]["epsilon"], rel=1e-9)
    assert all(entry.seeded for entry in ledger.entries)


def test_a_trial_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SMALL.run(store=TrialStore(tmp_path / "whole"))
    measured = trials._Material.accuracy
    calls = []

    def stopping(*arguments: object) -> float:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measured(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(trials._Material, "accuracy", stopping)
    with pytest.raises(KeyboardInterrupt):
        SMALL.run(store=TrialStore(tmp_path / "stopped"))
    gone_on = SMALL.run(store=TrialStore(tmp_path / "stopped"))
    assert {**gone_on, "seconds": 0} == {**whole, "seconds": 0}


def test_without_noise_there_is_no_price(tmp_path: Path) -> None:
    result = replace(SMALL, epsilon=None).run(store=TrialStore(tmp_path))
    assert result["sound"] == {"epsilon": None, "accountant": None}
    (folder,) = tmp_path.iterdir()
    assert Ledger.open(folder / "ledger.json").epsilon(1e-4) == np.inf


def test_shuffled_batches_cost_more_than_is_claimed(tmp_path: Path) -> None:
    result = replace(SMALL, shuffled=True).run(store=TrialStore(tmp_path))
    assert 2.99 < result["claimed"]["epsilon"] <= 3 < result["sound"]["epsilon"]


def test_a_simulated_batch_has_the_noise_of_the_whole_one(tmp_path: Path) -> None:
    whole = SMALL.run(store=TrialStore(tmp_path))
    few = replace(SMALL, simulated=32).run(store=TrialStore(tmp_path))
    assert few["steps"] == whole["steps"]
    assert few["batch"] == 32
    assert few["noise_multiplier"] / 32 == pytest.approx(whole["noise_multiplier"] / whole["batch"])
    assert few["sound"]["epsilon"] > 3  # said as it is: a simulation is not private at the ε it is of
    assert few["trial"].endswith("simulated by 32 a step seed 1")


def test_a_simulated_batch_is_a_poisson_draw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave out shuffled"):
        replace(SMALL, simulated=32, shuffled=True).run(store=TrialStore(tmp_path))
    with pytest.raises(ValueError, match="no draw of another kind"):
        LastIterateTrial("digits", "scatter-linear", delta=1e-4, simulated=32).run(store=TrialStore(tmp_path))


def test_held_out_records_are_not_trained_on(tmp_path: Path) -> None:
    dataset = load("digits")
    chosen = trials.recipe("scatter-linear", "digits", dataset.facts)
    trial = replace(SMALL, validation=300, records=500)
    material = trials._Material.of(trial, chosen, dataset)
    assert (len(material.train_y), len(material.test_y)) == (500, 300)
    rows = {row.tobytes() for row in material.train_x}
    shared = sum(row.tobytes() in rows for row in material.test_x)
    assert shared <= 3  # the data itself has a few doubles
    assert trial.run(store=TrialStore(tmp_path))["n"] == 500


def test_iteration_stays_within_the_budget(tmp_path: Path) -> None:
    trial = LastIterateTrial("digits", "scatter-linear", 0, delta=1e-4, passes=3, batch=128)
    result = trial.run(store=TrialStore(tmp_path))
    assert 2.9 < result["sound"]["epsilon"] <= 3
    assert result["sound"]["accountant"] == "rdp"
    with pytest.raises(ValueError, match="needed"):
        replace(trial, epsilon=None).run(store=TrialStore(tmp_path))


def test_other_settings_make_another_trial(tmp_path: Path) -> None:
    other = replace(SMALL, settings=settings(epochs=6, learning_rate=1.0))
    found = [trial.run(store=TrialStore(tmp_path))["learning_rate"] for trial in (SMALL, other)]
    assert found[0] != found[1]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_trial_that_was_stopped_goes_on_in_another_environment_or_starts_anew(
    shuffled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = replace(SMALL, shuffled=shuffled)
    with monkeypatch.context() as stopped:
        stopped.setattr(trials._Material, "accuracy", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            trial.run(store=TrialStore(tmp_path))
    here = environment()
    monkeypatch.setattr(key, "environment", lambda: {**here, "threads": 99})
    result = trial.run(store=TrialStore(tmp_path))
    assert 0 < result["accuracy"] <= 1
    assert result["curve"][-1]["accuracy"] == result["accuracy"]


def _interrupt(*_: object) -> float:
    raise KeyboardInterrupt


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    SMALL.run(store=TrialStore(tmp_path))
    (path,) = tmp_path.glob("*/result.json")
    path.write_text("{")
    with pytest.raises(ValueError, match=r"result\.json is damaged"):
        SMALL.run(store=TrialStore(tmp_path))


def test_further_examples_must_be_of_the_same_kind(tmp_path: Path) -> None:
    dataset = load("digits")
    for name, content, wrong in (
        ("empty", {}, "must hold the arrays x and y"),
        ("float", {"x": np.zeros((3, 8, 8)), "y": np.zeros(3, int)}, "not float64 of shape"),
        ("labels", {"x": np.zeros((3, 8, 8), np.uint8), "y": np.full(3, 11)}, "label of row 1"),
    ):
        np.savez(tmp_path / f"{name}.npz", **content)
        with pytest.raises(DataError, match=wrong):
            trials.further_examples(str(tmp_path / f"{name}.npz"), dataset)
    np.savez(tmp_path / "more.npz", x=dataset.train.x[:50], y=dataset.train.y[:50])
    result = replace(SMALL, more=str(tmp_path / "more.npz")).run(store=TrialStore(tmp_path))
    assert result["n"] == len(dataset.train) + 50


def test_a_trial_that_another_process_is_at_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / SMALL.key
    with Run.at(folder).alone(), pytest.raises(RunError, match="another process"):
        SMALL.run(store=TrialStore(tmp_path))
    assert (folder / "private").is_dir()


@pytest.mark.parametrize(
    ("paper", "trial"),
    [
        ("better-features", RecipeTrial("cifar-10", "cnn-small", epsilon=3.0, marks=10)),
        ("sampling-rates", RecipeTrial("mnist", "lsr-m3", epsilon=2.93, settings=MOVED, marks=10)),
    ],
)
def test_long_trainings_of_the_past_are_found(paper: str, trial: RecipeTrial, tmp_path: Path) -> None:
    store = TrialStore(tmp_path, Path(__file__).parents[2] / "results" / paper)
    assert store.get(trial.key, lambda folder: {})["trial"] == str(trial)
