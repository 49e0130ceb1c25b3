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
from sordino.papers.declarations import declared
from sordino.papers.privacy_aware import architecture_search
from sordino.papers.privacy_aware.architecture_search import (
    Length,
    SearchWorkflow,
    among,
    aware_workflow,
    beside_claim,
    search_data,
    sizes,
    standard_workflow,
    table_9,
    their_sound_epsilon,
)
from sordino.papers.privacy_aware.intervals import Interval
from sordino.papers.privacy_aware.network_trials import UNCLIPPED, calibrated
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
RANDOM = SearchWorkflow(RandomSearch(2.0), SPACE, 2.0, LENGTH, delta=1e-3)
GENETIC = replace(RANDOM, method=GeneticSearch(3, 3))
STANDARD = SearchWorkflow(
    GeneticSearch(1, 2), DenseSpace(((4, 8),), learning_rates=(0.1,)), None, LENGTH, (2.0, 0.5), delta=1e-3
)


@pytest.fixture(scope="module")
def genetic(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A genetic search, and its folder."""
    store = tmp_path_factory.mktemp("genetic")
    return GENETIC.run(store=TrialStore(store)), store / GENETIC.key


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


def test_a_genetic_search_costs_all_that_it_may_train(
    genetic: tuple[dict[str, Any], Path],
) -> None:
    found, _ = genetic
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
    assert architecture_search.claimed_search_epsilon(RandomSearch(400.0), 2.11, 5000) == pytest.approx(3.51, abs=0.02)
    assert architecture_search.claimed_search_epsilon(GeneticSearch(), 2.11, 5000) is None
    assert claimed_random_search(2.11, [40, 20, 10]) == pytest.approx(8.53, abs=0.02)


def test_accuracy_is_of_the_released_model_on_test_records(genetic: tuple[dict[str, Any], Path]) -> None:
    found, folder = genetic
    _, test = search_data(LENGTH.records, LENGTH.examined)
    model = Dense.from_json(found["candidate"]).build(test.shape, 10).eval()
    model.load_state_dict(load_file(folder / "search" / "model.safetensors"))
    with torch.no_grad():
        answers = model(torch.from_numpy(test.validation_x)).argmax(dim=1).numpy()
    assert found["score"] == np.mean(answers == test.validation_y)
    assert not (folder / "search" / "trials").exists()


def test_no_record_is_in_two_parts() -> None:
    searched, test = search_data(200, None)
    assert len(searched.train_y) == 200
    assert len(searched.validation_y) == len(test.validation_y) == 5000
    parts = [{row.tobytes() for row in rows} for rows in (searched.train_x, searched.validation_x, test.validation_x)]
    assert sum(map(len, parts)) == len(parts[0] | parts[1] | parts[2]) == 10_200


def test_diverged_trainings_count_as_always_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diverged = TrialResult(Dense((DenseLayer(4),), 0.5), 0.3, diverged=True, parameters=310, trained=310)
    monkeypatch.setattr(architecture_search, "search", lambda *given, **more: diverged)
    assert RANDOM.run(store=TrialStore(tmp_path))["score"] == 0


def test_a_stopped_search_goes_on_and_trains_nothing_twice(
    tmp_path: Path, genetic: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    whole, _ = genetic
    assert {**again, "seconds": 0, "ledger": 0} == {**whole, "seconds": 0, "ledger": 0}
    assert [entry["count"] for entry in again["ledger"]] == [entry["count"] for entry in whole["ledger"]]


def test_a_finished_workflow_is_not_searched_again_and_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(quick=True, store=TrialStore(tmp_path))
    (first,) = experiment.repeated(RANDOM, 3)
    assert list(experiment.ran) == [RANDOM.key]
    json.dumps(first, allow_nan=False)
    monkeypatch.setattr(SearchWorkflow, "_result", None)
    assert experiment.repeated(RANDOM, 3) == [first]
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


LOW, HIGH, WIDE, ALONE = Interval(0.8, 0.01), Interval(0.9, 0.01), Interval(0.89, 0.2), Interval(0.95, None)


def test_the_best_search_is_said_with_what_cannot_be_told_from_it() -> None:
    assert among({"a": HIGH, "b": LOW}).endswith("its interval lies above the others'")
    assert "a found the best" in among({"a": HIGH, "b": LOW, "c": WIDE})
    assert among({"a": HIGH, "b": LOW, "c": WIDE}).endswith("overlaps that of c")
    assert among({"a": ALONE, "b": LOW}).endswith("one seed cannot tell")


def test_claims_stand_beside_what_is_proven() -> None:
    assert (
        beside_claim("RS", 5.2, 4.1) == "RS: Eq. 9 would claim ε=4.1 for our search, the ledger says 5.2 for the same"
    )
    assert beside_claim("STW", "∞", None).endswith("claims nothing here")


def test_sizes_are_a_range() -> None:
    small, large = {"parameters": 9610, "trained_parameters": 10}, {"parameters": 12_000, "trained_parameters": 12_000}
    assert sizes([small, small]) == "9,610 (10)"
    assert sizes([large, small]) == "9,610 (10) to 12,000 (12,000)"


def test_the_papers_searches_are_priced_as_its_notes_say() -> None:
    here = Experiment()
    assert their_sound_epsilon(here, "RS") == pytest.approx(5.84, abs=0.01)
    assert their_sound_epsilon(here, "MGRS") == pytest.approx(11.75, abs=0.01)
    assert their_sound_epsilon(here, "RS", 0.341) == pytest.approx(0.93, abs=0.5)


@pytest.mark.parametrize("experiment", [Experiment(), Experiment(full=True), Experiment(quick=True)])
def test_both_workflows_search_alike_but_for_the_noise(experiment: Experiment) -> None:
    for name, freezing in (("PAAS", False), ("RS", True)):
        aware, standard = aware_workflow(experiment, name), standard_workflow(experiment, name, 2.11)
        assert (aware.epsilon, aware.then, standard.epsilon, standard.then) == (2.11, (), None, (2.11,))
        assert isinstance(aware.space, DenseSpace)
        assert isinstance(standard.space, DenseSpace)
        assert aware.space.learning_rates == aware.length.rates
        assert standard.space.learning_rates == aware.length.plain_rates
        alike = replace(aware.space, learning_rates=standard.space.learning_rates)
        assert aware.space.freezing == freezing
        assert replace(aware, space=alike, epsilon=None, then=(2.11,)) == standard
    assert aware_workflow(experiment, "MGRS").space == aware.space
    noisier = aware_workflow(experiment, "RS", 0.341)
    assert noisier.space == replace(aware.space, learning_rates=aware.length.noisy_rates)


def test_a_table_keeps_the_last_training_apart_from_the_whole_workflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(self: SearchWorkflow, folder: Path, say: Any) -> dict[str, Any]:
        then = {f"{epsilon:g}": {"score": 0.8, "epsilon_of_one_training": 0.9 * epsilon} for epsilon in self.then}
        return {
            "trial": str(self),
            "candidate": Dense((DenseLayer(4),), 0.5).to_json(),
            "parameters": 310,
            "trained_parameters": 310,
            "score": 0.9,
            "then": then,
            "epsilon": "infinity" if self.epsilon is None else 3 * self.epsilon,
            "accountant": "pld",
            "delta": self.delta,
            "epsilon_of_one_training": self.epsilon and 0.9 * self.epsilon,
            "claimed_epsilon": self.epsilon and 2 * self.epsilon,
        }

    monkeypatch.setattr(SearchWorkflow, "compute", compute)
    experiment = Experiment(quick=True, store=TrialStore(tmp_path))
    record = table_9(experiment, declared("privacy-aware")["table-9"])
    assert [row[0] for row in record.rows] == ["STW", "PAW"] * 2
    sound = [row[record.columns.index("sound ε of our whole workflow")] for row in record.rows]
    assert sound == ["∞", pytest.approx(6.33), "∞", pytest.approx(1.023)]
    alone = [row[record.columns.index("ε of the winner's training alone")] for row in record.rows]
    assert alone == pytest.approx([1.899, 1.899, 0.3069, 0.3069])
    assert (tmp_path / aware_workflow(experiment, "RS").key).exists()  # which Table VIII has as well
