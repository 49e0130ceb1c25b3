"""What searches charge, what they hide, and what they refuse."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.budget import (
    BudgetExceeded,
    Composed,
    Gaussian,
    Laplace,
    Ledger,
    PoissonGaussian,
    RepeatAndSelect,
    Repeated,
    cost,
)
from sordino.data.samplers import PoissonSampler
from sordino.runs import Run, RunError
from sordino.selection import (
    ConvolutionalSpace,
    Dense,
    DenseLayer,
    DenseSpace,
    GenerationalSearch,
    GeneticSearch,
    Grid,
    RandomSearch,
    TrialData,
    search,
    trials,
)
from sordino.selection.executors import Work
from sordino.selection.trials import FinishedTrial, TrialTask, run_trial
from sordino.training import Plan

TRAINING = Repeated(PoissonGaussian(1 / 3, 4.0), 4)
METHODS = [GeneticSearch(2, 3), RandomSearch(3.0), GenerationalSearch((2.0, 2.0))]


def run_at(path: Path) -> tuple[Run, Ledger]:
    run = Run.at(path)
    return run, Ledger(50.0, 1e-4, path=run.ledger)


@dataclass
class Watched:
    """Runs tasks here, keeps the first layer's weights of every trial, and may be cut off before a trial."""

    most: int = 1000
    folders: list[Path] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)

    @contextmanager
    def at_work(self, data: TrialData) -> Iterator[Work]:
        def watched(tasks: Iterable[TrialTask]) -> Iterator[FinishedTrial]:
            for task in tasks:
                if len(self.folders) == self.most:
                    raise KeyboardInterrupt
                self.folders.append(task.folder)
                self.plans.append(task.plan)
                trial = run_trial(task, data)
                self.weights.append(Run(trial.folder).read_tensors(Run(trial.folder).model)[0]["1.weight"])
                yield trial

        yield watched


def test_a_genetic_search_composes_every_trial(tmp_path, data, search_plan) -> None:
    run, ledger = run_at(tmp_path)
    shown, executor = [], Watched()
    found = search(
        run, search_plan(GeneticSearch(2, 3)), data, ledger, executor=executor, seed=1, on_result=shown.append
    )
    trials = len(executor.folders)
    assert 3 <= trials <= 6
    assert len(shown) == trials
    assert found in shown
    by_part = {entry.part: entry for entry in ledger.entries}
    assert (by_part["train"].event, by_part["validation"].event) == (TRAINING, Laplace(2.0))
    assert {(entry.count, entry.committed) for entry in ledger.entries} == {(trials, 6)}
    assert ledger.cost(reserved=True).epsilon == max(
        cost(Repeated(TRAINING, 6), 1e-4).epsilon, cost(Repeated(Laplace(2.0), 6), 1e-4).epsilon
    )
    assert not ledger.adaptive
    assert ledger.cost(reserved=True).accountant == "pld"


@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_all_generations_wins_even_if_mutation_lost_it(seed, tmp_path, data, search_plan) -> None:
    run, ledger = run_at(tmp_path)
    shown = []
    found = search(run, search_plan(GeneticSearch(3, 3, mutation=1.0)), data, ledger, seed=seed, on_result=shown.append)
    assert found.score == max(result.score for result in shown)


def test_candidates_that_come_again_are_neither_trained_nor_charged_again(tmp_path, data, search_plan) -> None:
    run, ledger = run_at(tmp_path)
    executor = Watched()
    two = DenseSpace(widths=((4, 6),), learning_rates=(0.5,), activations=(DenseLayer(1).activation,))
    search(run, search_plan(GeneticSearch(4, 5), space=two), data, ledger, executor=executor)
    assert len(executor.folders) == 2
    assert {entry.count for entry in ledger.entries} == {2}
    assert {entry.committed for entry in ledger.entries} == {20}


def test_a_random_search_pays_for_the_best_of_a_random_number(tmp_path, data, search_plan) -> None:
    run, ledger = run_at(tmp_path)
    shown = []
    search(run, search_plan(RandomSearch(3.0)), data, ledger, on_result=shown.append)
    assert shown == []
    by_part = {entry.part: entry.spent for entry in ledger.entries}
    assert by_part == {
        "train": Repeated(RepeatAndSelect(TRAINING, 3.0), 1),
        "validation": Repeated(RepeatAndSelect(Laplace(2.0), 3.0), 1),
    }
    assert ledger.epsilon() == max(cost(event, 1e-4).epsilon for event in by_part.values())


def test_generations_of_random_search_compose(tmp_path, data, search_plan) -> None:
    run, ledger = run_at(tmp_path)
    shown = []
    found = search(run, search_plan(GenerationalSearch((3.0, 2.0))), data, ledger, on_result=shown.append)
    assert len(shown) == 2
    assert found == max(shown, key=lambda result: result.score)
    train = [entry for entry in ledger.entries if entry.part == "train"]
    assert [entry.event.mean for entry in train] == [3.0, 2.0]
    assert not ledger.adaptive
    both = Composed((RepeatAndSelect(TRAINING, 3.0), RepeatAndSelect(TRAINING, 2.0)))
    assert searching_cost(ledger, "train") == pytest.approx(cost(both, 1e-4).epsilon)


def searching_cost(ledger: Ledger, part: str) -> float:
    return cost(Composed(tuple(entry.spent for entry in ledger.entries if entry.part == part)), 1e-4).epsilon


def test_trials_not_chosen_and_their_number_leave_no_trace(tmp_path, data, search_plan) -> None:
    run, ledger = run_at(tmp_path)
    executor = Watched()
    found = search(run, search_plan(RandomSearch(6.0)), data, ledger, executor=executor, seed=2)
    assert all(folder.is_relative_to(run.private) for folder in executor.folders)
    assert len(executor.folders) > 1
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    locks = {"ledger.json.lock", "private/lock"}
    assert left <= {"search.json", "model.safetensors", "ledger.json", "private/ledger.mark.json", *locks}
    outcome = json.loads((tmp_path / "search.json").read_text())
    assert set(outcome["chosen"]) == {"candidate", "score", "diverged", "parameters", "trained"}
    # Nor does the ledger tell: whatever the number was, it holds one event for all of them.
    assert {(entry.count, entry.committed) for entry in ledger.entries} == {(1, 1)}
    model = found.candidate.build(data.shape, 2)
    model.load_state_dict(run.read_tensors(run.model)[0])


def test_the_number_of_trials_is_drawn_under_the_key(tmp_path, data, search_plan) -> None:
    counts = []
    for seed in range(3):
        executor = Watched()
        search(
            *(Run.at(tmp_path / str(seed)), search_plan(RandomSearch(3.0)), data, Ledger()),
            executor=executor,
            seed=seed,
        )
        counts.append(len(executor.folders))
    assert len(set(counts)) > 1


def test_public_records_cost_nothing_and_are_scored_exactly(tmp_path, data, search_plan) -> None:
    found = search(Run.at(tmp_path), search_plan(RandomSearch(2.0), noise=None), data, None)
    assert found.score * len(data.validation_y) == pytest.approx(round(found.score * len(data.validation_y)))


def test_without_noise_private_records_cost_everything(tmp_path, data, search_plan) -> None:
    plan = Plan.without_noise(PoissonSampler(60, 20), 1.0, 1)
    asked = search_plan(GeneticSearch(1, 2), training=plan, noise=None)
    refusing = Run.at(tmp_path / "refused")
    with pytest.raises(BudgetExceeded):
        search(refusing, asked, data, Ledger(1.0, 1e-4))
    ledger = Ledger(target_delta=1e-4)
    search(Run.at(tmp_path / "stw"), asked, data, ledger)
    assert {entry.part for entry in ledger.entries} == {"train", "validation"}
    assert ledger.epsilon() == float("inf")


def test_exact_scores_of_private_records_are_refused(tmp_path, data, search_plan) -> None:
    with pytest.raises(ValueError, match="need noise"):
        search(Run.at(tmp_path), search_plan(RandomSearch(2.0), noise=None), data, Ledger())
    with pytest.raises(ValueError, match="too large"):
        search(Run.at(tmp_path), search_plan(RandomSearch(2.0), noise=Gaussian(1e30)), data, Ledger())
    with pytest.raises(ValueError, match="add-remove"):
        search(Run.at(tmp_path), search_plan(RandomSearch(2.0)), data, Ledger(adjacency="add-remove"))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_search_that_does_not_fit_records_nothing_and_frees_its_folder(tmp_path, data, search_plan, method) -> None:
    run = Run.at(tmp_path)
    ledger = Ledger(1.0, 1e-4, path=run.ledger)
    quiet = Plan(PoissonSampler(60, 20), 1.0, 200.0, 4)
    with pytest.raises(BudgetExceeded, match="Nothing was recorded"):  # the training fits, the scores do not
        search(run, search_plan(method, training=quiet, noise=Laplace(0.1)), data, ledger)
    assert (ledger.plan, ledger.entries) == ((), ())
    search(run, search_plan(method, training=quiet, noise=Laplace(100.0)), data, ledger)


def test_a_ledger_that_did_not_reserve_a_search_does_not_end_it(tmp_path, data, search_plan, monkeypatch) -> None:
    run, ledger = run_at(tmp_path)
    asked = search_plan(GeneticSearch(1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(GeneticSearch, "rounds", _killed)
        with pytest.raises(KeyboardInterrupt):
            search(run, asked, data, ledger)
    (run.folder / "trials").rmdir()  # as if it was killed right after it reserved
    with pytest.raises(RunError, match="pass the ledger it was started with"):
        search(run, asked, data, Ledger(0.001, 1e-4))
    search(run, asked, data, ledger)
    assert len(ledger.entries) == len(asked.charges(""))


def test_after_other_events_a_search_goes_through_the_filter(tmp_path, data, search_plan) -> None:
    run, ledger = run_at(tmp_path)
    ledger.spend(Gaussian(5.0), "a statistic")
    search(run, search_plan(GenerationalSearch((2.0, 2.0))), data, ledger)
    assert ledger.adaptive
    assert all(entry.planned for entry in ledger.entries if entry.part == "validation")


def test_a_finished_search_is_read_and_charges_nothing(tmp_path, data, search_plan) -> None:
    run, ledger = run_at(tmp_path)
    asked = search_plan(RandomSearch(2.0))
    found, before = search(run, asked, data, ledger), ledger.entries
    executor = Watched()
    assert search(run, asked, data, ledger, executor=executor) == found
    assert ledger.entries == before
    assert executor.folders == []
    with pytest.raises(RunError, match="other settings"):
        search(run, replace(asked, method=RandomSearch(5.0)), data, ledger)
    with pytest.raises(RunError, match="not paid for"):
        search(run, asked, data, Ledger(200.0, 1e-4))


def test_an_unfinished_search_goes_on_for_the_same_question_data_and_ledger_only(tmp_path, data, search_plan) -> None:
    run, ledger = run_at(tmp_path)
    asked = search_plan(GeneticSearch(2, 3))
    with pytest.raises(KeyboardInterrupt):
        search(run, asked, data, ledger, executor=Watched(most=1))
    other = replace(data, train_y=1 - data.train_y)
    with pytest.raises(RunError, match="other data"):
        search(run, asked, other, ledger)
    with pytest.raises(RunError, match="other settings"):
        search(run, replace(asked, noise=Gaussian(2.0)), data, ledger)
    with pytest.raises(RunError, match="not paid for"):
        search(run, asked, data, Ledger(50.0, 1e-4))
    key = json.loads((run.private / "search.json").read_text())
    old = {"secret": key["secret"], "question": key["plan"], "data": key["data"], "seed": key["seed"]}
    run.write_private("search.json", old)  # of a version that drew its noise otherwise
    with pytest.raises(RunError, match="another environment"):
        search(run, asked, data, ledger)
    run.write_private("search.json", key)
    assert {entry.count for entry in ledger.entries} == {2}, "the second was charged before it was to begin"
    search(run, asked, data, ledger)
    assert len(ledger.entries) == 2


def test_a_seed_pays_for_one_search_only(tmp_path, data, search_plan) -> None:
    ledger, asked = Ledger(200.0, 1e-4), search_plan(RandomSearch(1.0))
    search(Run.at(tmp_path / "first"), asked, data, ledger, seed=7)
    other = replace(data, train_y=1 - data.train_y)
    search(Run.at(tmp_path / "other data"), asked, other, ledger, seed=7)
    assert len(ledger.entries) == 4
    with pytest.raises(RunError, match="choose another seed"):
        search(Run.at(tmp_path / "again"), asked, data, ledger, seed=7)


def test_a_training_that_diverges_is_always_wrong_and_ends_no_search(tmp_path, data, search_plan) -> None:
    space, run = DenseSpace(widths=((4,),), learning_rates=(1e38,)), Run.at(tmp_path)
    loud = Plan(PoissonSampler(60, 20), 1.0, 1e6, 4)
    asked = search_plan(RandomSearch(2.0), space=space, noise=Laplace(1e-3), training=loud)
    found = search(run, asked, data, Ledger())
    assert found.diverged
    assert abs(found.score) < 0.01
    assert not run.model.exists()


def test_no_key_outlives_a_search_whose_trials_diverged(tmp_path, data, search_plan, monkeypatch) -> None:
    space, run, ledger = DenseSpace(widths=((4,),), learning_rates=(1e38,)), Run.at(tmp_path), Ledger()
    loud = Plan(PoissonSampler(60, 20), 1.0, 1e6, 4)
    asked = search_plan(GeneticSearch(1, 2), space=space, training=loud)
    with monkeypatch.context() as patched:  # killed after a training has ended, before its trial is kept
        patched.setattr(trials, "uncharged_accuracy", _killed)
        with pytest.raises(KeyboardInterrupt):
            search(run, asked, data, ledger)
    assert search(run, asked, data, ledger).diverged
    assert not list(tmp_path.glob("**/key.json*"))
    (left := tmp_path / "trials" / "0001" / "private" / "key.json").write_text("by an earlier version")
    search(run, asked, data, ledger)
    assert not left.exists()


def _killed(*_: object) -> float:
    raise KeyboardInterrupt


def test_a_search_on_public_records_is_not_taken_for_one_that_was_paid_for(tmp_path, data, search_plan) -> None:
    asked = search_plan(GeneticSearch(1, 2))
    search(Run.at(tmp_path), asked, data, None)
    with pytest.raises(RunError, match="not paid"):
        search(Run.at(tmp_path), asked, data, Ledger())


def test_trials_differ_though_candidates_are_equal(tmp_path, data, search_plan) -> None:
    """In a random search a candidate that comes twice is trained twice: the theorem wants independent trials."""
    space = DenseSpace(widths=((4,),), learning_rates=(0.5,), activations=(DenseLayer(1).activation,))
    executor = Watched()
    search(*(Run.at(tmp_path), search_plan(RandomSearch(6.0), space=space), data, Ledger()), executor=executor, seed=2)
    assert len(executor.weights) > 1
    assert not torch.equal(executor.weights[0], executor.weights[1])


def test_a_linear_model_and_clips_of_their_own(tmp_path, data, search_plan) -> None:
    linear = Dense((), 0.5, l2_clip=0.2)
    executor, run = Watched(), Run.at(tmp_path)
    search(run, search_plan(GeneticSearch(1, 1), space=Grid((linear,))), data, Ledger(), executor=executor)
    assert executor.plans == [replace(search_plan(GeneticSearch()).training, l2_clip=0.2)]
    assert str(linear) == "linear, learning rate 0.5, clip 0.2"
    assert sum(p.numel() for p in linear.build((5,), 2).parameters()) == 12


def test_a_winner_on_public_records_is_shown_once(tmp_path, data, search_plan) -> None:
    shown: list[object] = []
    asked = search_plan(GenerationalSearch((2.0, 2.0)), noise=None)
    search(Run.at(tmp_path), asked, data, None, seed=1, on_result=shown.append)
    assert len(shown) == len(list((tmp_path / "trials").iterdir()))


@pytest.mark.parametrize("ledger", [None, Ledger(1e3, 1e-4)], ids=["public", "private"])
def test_what_cannot_be_built_is_refused_before_it_is_paid_for(tmp_path, data, search_plan, ledger) -> None:
    for space, says in (
        (ConvolutionalSpace(), "not images large enough"),
        (DenseSpace(widths=((10,), (10, 20_000), (20_000,))), "400,280,062 parameters"),
        (Grid((Dense((), 0.5), Dense((DenseLayer(10**8),), 0.5))), "parameters"),
    ):
        with pytest.raises(ValueError, match=says):
            search(Run.at(tmp_path), search_plan(RandomSearch(1.0), space=space), data, ledger)
    assert ledger is None or (ledger.plan, ledger.entries) == ((), ())


def test_material_is_checked() -> None:
    x, y = np.zeros((4, 3), dtype="float32"), np.zeros(4, dtype=np.int64)
    with pytest.raises(ValueError, match="a label for each example"):
        TrialData(x, y[:2], x, y, 2)
    with pytest.raises(ValueError, match="the same shape"):
        TrialData(x, y, x[:, :2], y, 2)
    wrong = np.where(np.arange(len(y)) == 1, 7, y)  # torch would quote it, in the middle of a trial that stays secret
    with pytest.raises(ValueError, match="the label of row 2 is not among the 2 classes"):
        TrialData(x, y, x, wrong, 2)


def test_a_private_part_is_named_for_every_stage(search_plan) -> None:
    for method in METHODS:
        stages = search_plan(method).stages()
        assert [part for stage in stages for part, _ in stage.events()] == ["train", "validation"] * len(stages)
