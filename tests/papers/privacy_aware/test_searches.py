"""A workflow has one ledger for all it tries, searches without noise cost ∞, and test records choose nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sordino.budget import Composed, Ledger, RepeatAndSelect, Repeated, claimed_random_search, cost
from sordino.data.samplers import PoissonSampler
from sordino.papers.privacy_aware import searches
from sordino.papers.privacy_aware.network_trials import UNCLIPPED, calibrated
from sordino.papers.privacy_aware.searches import Length, Workflow, material, repeated
from sordino.papers.trials import Experiment, TrialStore
from sordino.selection import (
    Dense,
    DenseLayer,
    DenseSpace,
    GenerationalSearch,
    GeneticSearch,
    RandomSearch,
    TrialData,
    TrialResult,
    executors,
)

LENGTH = Length(48, 16, 1, (0.5, 1.0), (0.1, 0.2), 16, 1, (0.1, 0.3), examined=24)
SPACE = DenseSpace(((4, 8), (4,)), learning_rates=(0.5,), freezing=True)
RANDOM = Workflow(RandomSearch(2.0), SPACE, 2.0, LENGTH, delta=1e-3)
GENETIC = replace(RANDOM, method=GeneticSearch(3, 3))
STANDARD = Workflow(
    GeneticSearch(1, 2), DenseSpace(((4, 8),), learning_rates=(0.1,)), None, LENGTH, (2.0, 0.5), delta=1e-3
)


def _training(epsilon: float) -> Repeated:
    sampler = PoissonSampler(48, 16)
    return Repeated(sampler.event(calibrated(sampler, 3, epsilon, 1e-3)), 3)


def test_a_random_search_costs_the_best_of_a_random_number(tmp_path: Path) -> None:
    found = RANDOM.run(store=TrialStore(tmp_path))
    assert found["epsilon"] == pytest.approx(cost(RepeatAndSelect(_training(2.0), 2.0), 1e-3).epsilon)
    assert found["epsilon"] > found["epsilon_of_one_training"] == pytest.approx(cost(_training(2.0), 1e-3).epsilon)
    assert found["claimed_epsilon"] is None  # Eq. 9 has no solution on 24 validation records
    (folder,) = tmp_path.iterdir()
    assert found["epsilon"] == pytest.approx(Ledger.open(folder / "ledger.json").cost(reserved=True).epsilon)


def test_generations_are_composed(tmp_path: Path) -> None:
    found = replace(RANDOM, method=GenerationalSearch((2.0, 1.5))).run(store=TrialStore(tmp_path))
    generations = [RepeatAndSelect(_training(2.0), mean) for mean in (2.0, 1.5)]
    assert found["epsilon"] == pytest.approx(cost(Composed(tuple(generations)), 1e-3).epsilon)


def test_a_genetic_search_costs_all_it_may_train_also_what_it_trained_before(tmp_path: Path) -> None:
    found = GENETIC.run(store=TrialStore(tmp_path))
    assert found["epsilon"] == pytest.approx(cost(Repeated(_training(2.0), 9), 1e-3).epsilon)
    drawn = [entry["count"] for entry in found["ledger"] if entry["part"] == "train"]
    assert drawn[0] < 9  # or this test shows nothing


def test_the_standard_workflow_is_not_private_whatever_it_trains_last(tmp_path: Path) -> None:
    found = STANDARD.run(store=TrialStore(tmp_path))
    assert found["epsilon"] == "infinity"
    assert (found["epsilon_of_one_training"], found["claimed_epsilon"]) == (None, None)
    assert found["plan"]["l2_clip"] == UNCLIPPED
    assert list(found["then"]) == ["2", "0.5"]
    for epsilon, trained in found["then"].items():
        assert 0.95 * float(epsilon) < trained["epsilon_of_one_training"] <= float(epsilon)
        assert trained["learning_rate"] in (LENGTH.rates if epsilon == "2" else LENGTH.noisy_rates)
        assert trained["plan"]["l2_clip"] == 1
    (folder,) = tmp_path.iterdir()
    entries = Ledger.open(folder / "ledger.json").entries
    # A search of two and, for either ε, two rates: their trainings and their scores.
    assert [(entry.part, entry.count) for entry in entries] == [("train", 2), ("validation", 2)] * 3


def test_eq_9_is_the_papers_claim_for_its_own_sizes() -> None:
    assert searches.claimed_search_epsilon(RandomSearch(400.0), 2.11, 5000) == pytest.approx(3.51, abs=0.02)
    assert searches.claimed_search_epsilon(GeneticSearch(), 2.11, 5000) is None
    assert claimed_random_search(2.11, [40, 20, 10]) == pytest.approx(8.53, abs=0.02)


def test_accuracy_is_of_the_released_model_on_test_records(tmp_path: Path) -> None:
    found = GENETIC.run(store=TrialStore(tmp_path))
    (folder,) = tmp_path.iterdir()
    _, test = material(LENGTH.records, LENGTH.examined)
    model = Dense.from_json(found["candidate"]).build(test.shape, 10).eval()
    model.load_state_dict(load_file(folder / "search" / "model.safetensors"))
    with torch.no_grad():
        answers = model(torch.from_numpy(test.validation_x)).argmax(dim=1).numpy()
    assert found["score"] == np.mean(answers == test.validation_y)
    assert not (folder / "search" / "trials").exists()


def test_no_record_is_in_two_parts() -> None:
    searched, test = material(200, None)
    assert len(searched.train_y) == 200
    assert len(searched.validation_y) == len(test.validation_y) == 5000
    parts = [{row.tobytes() for row in rows} for rows in (searched.train_x, searched.validation_x, test.validation_x)]
    assert sum(map(len, parts)) == len(parts[0] | parts[1] | parts[2]) == 10_200


def test_diverged_trainings_count_as_always_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diverged = TrialResult(Dense((DenseLayer(4),), 0.5), 0.3, diverged=True, parameters=310, trained=310)
    monkeypatch.setattr(searches, "search", lambda *given, **more: diverged)
    assert RANDOM.run(store=TrialStore(tmp_path))["score"] == 0


def test_a_stopped_search_goes_on_and_trains_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    trial_steps = executors.trial_steps

    def counted(task: Any, material: TrialData, place: tuple[int, int]) -> Any:
        if not (task.folder / "trial.json").exists():
            trained.append(task.number)
        return trial_steps(task, material, place)

    def stop(line: str) -> None:
        if "2 found" in line:
            raise KeyboardInterrupt

    monkeypatch.setattr(executors, "trial_steps", counted)
    with pytest.raises(KeyboardInterrupt):
        GENETIC.run(stop, TrialStore(tmp_path / "a"))
    assert trained == [0, 1]
    again = GENETIC.run(store=TrialStore(tmp_path / "a"))
    assert trained == list(range(len(trained)))
    whole = GENETIC.run(store=TrialStore(tmp_path / "b"))
    assert {**again, "seconds": 0, "ledger": 0} == {**whole, "seconds": 0, "ledger": 0}
    assert [entry["count"] for entry in again["ledger"]] == [entry["count"] for entry in whole["ledger"]]


def test_a_finished_workflow_is_not_searched_again_and_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(quick=True, store=TrialStore(tmp_path))
    (first,) = repeated(experiment, RANDOM, 3)
    assert list(experiment.ran) == [first["trial"]]
    json.dumps(first, allow_nan=False)
    monkeypatch.setattr(Workflow, "_result", None)
    assert repeated(experiment, RANDOM, 3) == [first]
    for changes in (
        {"seed": 1},
        {"epsilon": 3.0},
        {"then": (2.0,)},
        {"length": replace(LENGTH, epochs=2)},
        {"space": replace(SPACE, freezing=False)},
        {"method": RandomSearch(3.0)},
    ):
        with pytest.raises(TypeError):
            replace(RANDOM, **changes).run(store=TrialStore(tmp_path))
