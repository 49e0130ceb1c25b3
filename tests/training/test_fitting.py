"""Interrupted runs: same weights bit for bit, nothing charged twice needlessly, nothing drawn that is not charged."""

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

from sordino.budget import BudgetExceeded, Ledger, LedgerError
from sordino.budget.events import UnsupportedEvent
from sordino.data import ArrayRecords
from sordino.data.samplers import FixedSizeSampler, PoissonSampler, ShuffledSampler
from sordino.mechanisms.streams import StreamsError
from sordino.runs import Key, Run, RunError, environment, key
from sordino.training import dpsgd
from sordino.training import fit as fit_model
from sordino.training.canaries import Canaries, CanaryRecords, WithCanaries
from sordino.training.last_iterate import LastIteratePlan
from sordino.training.linear import LinearClassifier
from sordino.training.modules import TrainableModule
from sordino.training.optimisers import SGD
from sordino.training.plan import Plan, plan_from_json
from sordino.training.weight_distributions import WeightDistributionPlan

PLAN = Plan(PoissonSampler(120, 12), l2_clip=0.5, noise_multiplier=2.0, steps=60)
OPTIMISER = SGD(0.5, momentum=0.9)


class Killed(Exception):  # noqa: N818
    """Stands for a process that ends at once: nothing of ours catches it."""


class Fragile(LinearClassifier):
    """Dies when it is asked for its k-th sum."""

    def __init__(self, x: Any, y: Any, classes: int, dies_at: int = -1) -> None:
        super().__init__(x.shape[1], classes)
        self.records, self.left = ArrayRecords(x, y), dies_at

    def clipped_sum(self, *arguments: Any) -> dpsgd.ClippedSum:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return super().clipped_sum(*arguments)


def model(dies_at: int = -1, shift: float = 0.0) -> Fragile:
    generator = np.random.default_rng(5)
    vectors = generator.normal(size=(120, 6)).astype(np.float32) + np.float32(shift)
    return Fragile(vectors, generator.integers(0, 3, 120), 3, dies_at=dies_at)


def fit(run: Run | None, plan: Plan, model: Any, optimiser: Any, ledger: Ledger, **options: Any) -> int:
    fitted = fit_model(plan, model, model.records, optimiser=optimiser, ledger=ledger, run=run, **options)
    return fitted.steps


def open_ledger(run: Run, plan: Plan = PLAN) -> Ledger:
    return Ledger(50.0, 1e-5, path=run.ledger, planned=[(plan.event, "training", "train")])


def train(run: Run, trained_model: Fragile, plan: Plan = PLAN, seed: int | None = 1, block: int = 7) -> int:
    return fit(run, plan, trained_model, OPTIMISER, open_ledger(run, plan), seed=seed, checkpoint_every=block)


def ledger_content(run: Run) -> list[dict[str, Any]]:
    return [asdict(replace(entry, when="-")) for entry in Ledger.open(run.ledger).entries]


def uninterrupted(tmp_path: Path) -> tuple[Run, Fragile]:
    run, trained_model = Run.create(tmp_path / "whole", "test"), model()
    assert train(run, trained_model) == 60
    return run, trained_model


def test_any_number_of_interruptions_end_in_the_same_weights_and_ledger(tmp_path: Path) -> None:
    whole_run, whole = uninterrupted(tmp_path)
    run = Run.create(tmp_path / "broken", "test")
    for dies_at in (0, 3, 6, 7, 8, 20, 0, 13):
        with pytest.raises(Killed):
            train(run, model(dies_at))
        # Never more drawn than charged: the checkpoint is behind the ledger, by a block at most.
        assert Ledger.open(run.ledger).entries[0].count % 7 == 0
    last = model()
    assert train(run, last) == 60
    assert all(torch.equal(last.parameters[name], value) for name, value in whole.parameters.items())
    assert ledger_content(run) == ledger_content(whole_run)
    assert Ledger.open(run.ledger).entries[0].count == 60


def test_a_finished_run_is_loaded_and_its_key_is_gone(tmp_path: Path) -> None:
    run, trained = uninterrupted(tmp_path)
    assert not (run.private / "key.json").exists()
    assert not run.checkpoint.exists()
    again = model(dies_at=0)
    assert train(run, again) == 60
    assert all(torch.equal(again.parameters[name], value) for name, value in trained.parameters.items())
    assert Ledger.open(run.ledger).entries[0].count == 60


def test_steps_are_charged_before_they_are_drawn(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "test")
    seen: list[tuple[int, int]] = []

    class Watching(Fragile):
        def clipped_sum(self, *arguments: Any) -> dpsgd.ClippedSum:
            seen.append((len(seen) + 1, Ledger.open(run.ledger).entries[0].count))
            return super().clipped_sum(*arguments)

    data = model().records.arrays
    train(run, Watching(*data, 3))
    assert len(seen) == 60
    assert all(drawn <= charged for drawn, charged in seen)


def test_another_plan_other_data_or_another_seed_is_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "test")
    with pytest.raises(Killed):
        train(run, model(20))
    before = run.ledger.read_bytes(), run.checkpoint.read_bytes()
    with pytest.raises(RunError, match="other data"):
        train(run, model(shift=1e-3))
    with pytest.raises(RunError, match="another plan"):
        fit(run, PLAN, model(), SGD(0.4, momentum=0.9), open_ledger(run), seed=1)
    with pytest.raises(RunError, match="another plan"):
        train(run, model(), seed=2)
    with pytest.raises(ValueError, match="other terms"):
        train(run, model(), replace(PLAN, noise_multiplier=1.9))
    with pytest.raises(RunError, match="another plan, optimiser, model"):
        train(run, Fragile(*model().records.arrays, 4))
    with pytest.raises(RunError, match="n=120"):
        train(run, Fragile(*(array[:100] for array in model().records.arrays), 3))
    assert (run.ledger.read_bytes(), run.checkpoint.read_bytes()) == before
    assert train(run, model()) == 60


def test_no_two_different_releases_share_noise_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs, steps and environments A → B → A: equal noise only for the very same step with the very same sums."""
    released: dict[bytes, set[bytes]] = {}
    draws: list[bytes] = []
    gaussian_noise, noisy_mean = dpsgd.gaussian_noise, dpsgd.noisy_mean

    def watched_noise(*arguments: Any) -> Any:
        noise = gaussian_noise(*arguments)
        draws.append(noise.tobytes())
        return noise

    def watched_mean(sums: Any, *arguments: Any) -> Any:
        draws.clear()
        mean = noisy_mean(sums, *arguments)
        for noise, name in zip(draws, sorted(sums), strict=True):
            released.setdefault(noise, set()).add(sums[name].numpy().tobytes())
        return mean

    monkeypatch.setattr(dpsgd, "_TOGETHER", 1)  # a draw for each parameter, to watch them apart
    monkeypatch.setattr(dpsgd, "gaussian_noise", watched_noise)
    monkeypatch.setattr(dpsgd, "noisy_mean", watched_mean)
    here = environment()
    run = Run.create(tmp_path / "run", "test")
    # The second environment's checkpoint lies among steps that the first had drawn and lost.
    for threads, dies_at, block in ((1, 20, 7), (2, 3, 2), (1, 12, 7), (1, 3, 7)):
        monkeypatch.setattr(key, "environment", lambda threads=threads: here | {"threads": threads})
        with pytest.raises(Killed):
            train(run, model(dies_at), block=block)
    trained = train(run, model())
    assert Ledger.open(run.ledger).entries[0].count == 60
    assert trained < 60
    train(Run.create(tmp_path / "other", "test"), model(), seed=None)
    train(Run.create(tmp_path / "third", "test"), model(), seed=None)
    assert len(released) > 150
    assert all(len(sums) == 1 for sums in released.values())


def test_a_new_environment_charges_lost_steps_out_of_the_plans_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "run", "test")
    with pytest.raises(Killed):
        train(run, model(16))  # 21 steps charged, 14 in the checkpoint
    here = environment()
    monkeypatch.setattr(key, "environment", lambda: here | {"cpu": "another"})
    assert train(run, model()) == 53
    assert Ledger.open(run.ledger).entries[0].count == 60


def test_a_folder_without_its_private_part_reveals_no_noise_and_cannot_go_on(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "test")
    with pytest.raises(Killed):
        train(run, model(20), seed=None)
    assert run.private.stat().st_mode & 0o777 == 0o700
    assert (run.private / "key.json").stat().st_mode & 0o777 == 0o600
    key = json.loads((run.private / "key.json").read_text())
    moved = Run(tmp_path / "moved")
    shutil.copytree(run.folder, moved.folder, ignore=shutil.ignore_patterns("private"))
    for path in moved.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for secret in (key["secret"], key["data"]):
                assert secret.encode() not in content
                assert bytes.fromhex(secret) not in content
    with pytest.raises(RunError, match="no key"):
        train(moved, model(), seed=None)


def test_a_ledger_that_lacks_what_was_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(tmp_path / "run", "test")
    with pytest.raises(Killed):
        train(run, model(20))
    old = run.ledger.read_bytes()
    with pytest.raises(Killed):
        train(run, model(20))
    run.ledger.write_bytes(old)  # a backup of 21 steps against a checkpoint of 28
    with pytest.raises(LedgerError, match="old copy"):
        train(run, model())
    (run.private / "ledger.mark.json").unlink()  # a run of an older version has no mark
    monkeypatch.setenv("SORDINO_STATE", str(tmp_path / "another computer"))
    with pytest.raises(RunError, match="old copy"):
        train(run, model())
    run.ledger.unlink()
    with pytest.raises(RunError, match="this ledger has not paid"):
        train(run, model())


def test_an_older_copy_of_a_shared_ledger_is_refused_where_nothing_but_the_run_knows_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, path = Run.at(tmp_path / "run"), tmp_path / "shared.json"
    ledger = Ledger(50.0, 1e-5, path=path)
    old = path.read_bytes()
    with pytest.raises(Killed):
        fit(run, PLAN, model(20), OPTIMISER, ledger)
    path.write_bytes(old)
    monkeypatch.setenv("SORDINO_STATE", str(tmp_path / "another computer"))
    with pytest.raises(LedgerError, match="old copy"):
        fit(run, PLAN, model(), OPTIMISER, Ledger.open(path))


def test_marks_are_kept_of_the_runs_that_draw_and_of_no_others(tmp_path: Path) -> None:
    ledger = Ledger(path=tmp_path / "shared.json")
    for name in "ab":
        fit(Run.at(tmp_path / name), PLAN, model(), OPTIMISER, ledger)
    marks = [json.loads((tmp_path / name / "private" / "ledger.mark.json").read_text()) for name in "ab"]
    assert [mark["drawn"] for mark in marks] == [60, 120]


@pytest.mark.parametrize("epsilon", [0.001, 50.0])
def test_a_wrong_ledger_neither_ends_nor_pays_for_a_run_that_has_paid(tmp_path: Path, epsilon: float) -> None:
    run, right = Run.at(tmp_path / "run"), Ledger(50.0, 1e-5, path=tmp_path / "right.json")
    with pytest.raises(Killed):
        fit(run, PLAN, model(1), OPTIMISER, right)  # amid the first block
    wrong = Ledger(epsilon, 1e-5, path=tmp_path / "wrong.json")
    for _ in range(2):
        with pytest.raises(RunError, match="pass the ledger it was started with"):
            fit(run, PLAN, model(), OPTIMISER, wrong)
    assert not wrong.entries
    assert fit(run, PLAN, model(), OPTIMISER, right) == 60
    assert [entry.count for entry in right.entries] == [60]


def test_a_refusal_deletes_only_a_key_that_is_new(tmp_path: Path) -> None:
    run, right = Run.at(tmp_path / "run"), Ledger(50.0, 1e-5, path=tmp_path / "right.json")
    with pytest.raises(Killed):
        fit(run, PLAN, model(1), OPTIMISER, right)
    with pytest.raises(RunError, match="has not paid"):
        fit(run, PLAN, model(), OPTIMISER, Ledger(0.001, 1e-5, path=tmp_path / "other.json"))
    assert fit(run, PLAN, model(), OPTIMISER, right) == 60
    assert [entry.count for entry in right.entries] == [60]


def test_a_run_killed_before_it_paid_goes_on_with_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, ledger = Run.at(tmp_path / "run"), Ledger(50.0, 1e-5, path=tmp_path / "shared.json")
    Ledger(50.0, 1e-5, path=tmp_path / "other.json").mark_in(run.private / "ledger.mark.json")  # of an earlier attempt

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "begin", killed)
        with pytest.raises(Killed):
            fit(run, PLAN, model(), OPTIMISER, ledger)
    assert Key.read(run)
    assert fit(run, PLAN, model(), OPTIMISER, ledger) == 60


def test_weights_are_not_given_out_with_a_ledger_that_did_not_pay_for_them(tmp_path: Path) -> None:
    run, _ = uninterrupted(tmp_path)
    with pytest.raises(RunError, match="another plan or ledger"):
        fit(run, PLAN, model(), OPTIMISER, Ledger(50.0, 1e-5, path=tmp_path / "other.json"), seed=1)


def test_two_runs_on_one_ledger_are_two_entries(tmp_path: Path) -> None:
    ledger = Ledger(50.0, 1e-5, path=tmp_path / "ledger.json")
    first, second = Run.at(tmp_path / "first"), Run.at(tmp_path / "second")

    def stop_at_once(done: int, total: int) -> None:
        raise Killed

    with pytest.raises(Killed):  # between opening its entry and its first charge
        fit(first, PLAN, model(), OPTIMISER, ledger, on_progress=stop_at_once)
    fit(second, PLAN, model(), OPTIMISER, Ledger.open(ledger.path))  # type: ignore[arg-type]
    fit(first, PLAN, model(), OPTIMISER, Ledger.open(ledger.path))  # type: ignore[arg-type]
    entries = Ledger.open(ledger.path).entries  # type: ignore[arg-type]
    assert [entry.count for entry in entries] == [60, 60]
    assert len({entry.run for entry in entries}) == 2


def test_a_seeded_run_is_not_paid_for_by_its_twin(tmp_path: Path) -> None:
    ledger = Ledger(50.0, 1e-5, path=tmp_path / "ledger.json")
    fit(Run.at(tmp_path / "first"), PLAN, model(), OPTIMISER, ledger, seed=1)
    for _ in range(2):
        with pytest.raises(RunError, match="choose another seed"):
            fit(Run.at(tmp_path / "second"), PLAN, model(), OPTIMISER, ledger, seed=1)


def test_shuffled_batches_stay_in_their_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(PLAN, sampler=ShuffledSampler(120, 12))
    run = Run.create(tmp_path / "run", "test")
    with pytest.raises(Killed):
        train(run, model(20), plan)
    here = environment()
    with monkeypatch.context() as patch:
        patch.setattr(key, "environment", lambda: here | {"threads": 99})
        with pytest.raises(RunError, match="another environment"):
            train(run, model(), plan)
    assert train(run, model(), plan) == 60


def test_a_model_that_was_interrupted_may_be_passed_again(tmp_path: Path) -> None:
    _, whole = uninterrupted(tmp_path)
    run, trained_model = Run.create(tmp_path / "run", "test"), model(dies_at=3)
    with pytest.raises(Killed):
        train(run, trained_model)
    trained_model.left = -1
    train(run, trained_model)
    assert torch.equal(trained_model.parameters["weight"], whole.parameters["weight"])


@pytest.mark.parametrize("threads", [1, 2])
def test_tiny_batches_resume_to_the_same_bits(tmp_path: Path, threads: int) -> None:
    """Products with one row take other kernels, which round by how their operands lie in memory."""
    plan = Plan(PoissonSampler(120, 2), l2_clip=0.5, noise_multiplier=2.0, steps=60)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = model()
        train(Run.create(tmp_path / "whole", "test"), whole, plan)
        for trial in range(5):
            run, last = Run.create(tmp_path / f"broken-{trial}", "test"), model()
            for dies_at in (9, 5, 8, 30):
                with pytest.raises(Killed):
                    train(run, model(dies_at), plan, block=1 + trial)
            train(run, last, plan)
            assert all(torch.equal(last.parameters[name], value) for name, value in whole.parameters.items())
    finally:
        torch.set_num_threads(before)


def test_blocks_have_at_least_one_step(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint_every"):
        train(Run.create(tmp_path / "run", "test"), model(), block=0)


def test_a_second_process_on_the_same_run_is_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "test")
    with run.alone(), pytest.raises(RunError, match="another process"):
        train(run, model())


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "private/key.json", "ledger.json"])
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    run = Run.create(tmp_path / "run", "test")
    with pytest.raises(Killed):
        train(run, model(20))
    path = run.folder / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="damaged") as caught:
        train(run, model())
    assert "\n" not in str(caught.value)


def stopped(run: Run, *dies_at: int, seed: int | None = None) -> list[bytes]:
    """A run that was killed so often, and the checkpoints that it had then."""
    copies = []
    for steps in dies_at:
        with pytest.raises(Killed):
            train(run, model(steps), seed=seed)
        copies.append(run.checkpoint.read_bytes())
    return copies


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of torch's threads: the child does not use them
def test_a_child_that_is_forked_amid_a_training_does_not_continue_it(tmp_path: Path) -> None:
    run, parent, exits = Run.create(tmp_path / "run", "test"), os.getpid(), []

    def fork(done: int, total: int) -> None:
        if done == 7:
            child = os.fork()
            if child:
                exits.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    try:
        fit(run, PLAN, model(), OPTIMISER, open_ledger(run), checkpoint_every=7, on_progress=fork)
    except StreamsError:
        if os.getpid() != parent:
            os._exit(5)
    assert (os.getpid(), exits) == (parent, [5])


@pytest.mark.parametrize("place", [0.3, 0.6, 0.9])
def test_a_checkpoint_with_a_flipped_bit_is_refused(tmp_path: Path, place: float) -> None:
    run = Run.create(tmp_path / "run", "test")
    content = bytearray(stopped(run, 20)[0])
    start = 8 + int.from_bytes(content[:8], "little")  # the header tells where tensors begin
    content[start + int(place * (len(content) - start))] ^= 1
    run.checkpoint.write_bytes(content)
    before = run.ledger.read_bytes()
    with pytest.raises(RunError, match="altered after it was written") as caught:
        train(run, model(), seed=None)
    assert "\n" not in str(caught.value)
    assert run.ledger.read_bytes() == before


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    one, other = (Run.create(tmp_path / name, "test") for name in ("one", "other"))
    [early], _ = stopped(one, 10), stopped(other, 30)
    other.checkpoint.write_bytes(early)
    with pytest.raises(RunError, match="not written by this run"):
        train(other, model(), seed=None)


def test_an_old_copy_of_the_runs_own_checkpoint_repeats_the_same_bits(tmp_path: Path) -> None:
    run, last = Run.create(tmp_path / "run", "test"), model()
    early, _, late = stopped(run, 10, 15, 20)
    run.checkpoint.write_bytes(early)
    stopped(run, 30)
    assert run.checkpoint.read_bytes() == late
    assert train(run, last, seed=None) == 60


def test_a_checkpoint_from_before_a_change_of_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, here = Run.create(tmp_path / "run", "test"), environment()
    early, started_from = stopped(run, 10, 10)
    monkeypatch.setattr(key, "environment", lambda: here | {"threads": 99})
    assert stopped(run, 0) == [started_from]  # killed before it wrote a checkpoint here
    stopped(run, 10)
    run.checkpoint.write_bytes(early)
    with pytest.raises(RunError, match="old copy"):
        train(run, model(), seed=None)
    run.checkpoint.write_bytes(started_from)  # from here the steps are the same again
    assert train(run, model(), seed=None) < 60


@pytest.mark.filterwarnings("ignore:.*has no checksum")
def test_a_checkpoint_of_an_older_version_is_resumed_with_fresh_noise(tmp_path: Path) -> None:
    run, seeded = Run.create(tmp_path / "run", "test"), Run.create(tmp_path / "seeded", "test")
    for each, seed in ((run, None), (seeded, 1)):
        stopped(each, 20, seed=seed)  # 21 steps charged, 14 in the checkpoint
        tensors, facts = each.read_tensors(each.checkpoint)
        facts = {name: value for name, value in facts.items() if name not in ("seal", "mac", "era")}
        each.checkpoint.write_bytes(save(tensors, {"sordino": json.dumps(facts)}))
        (each.folder / "run.json").unlink()  # which that version did not write
    with pytest.warns(UserWarning, match=r"7 of the 21 steps that are charged .* will have 53 of 60 steps"):
        assert train(run, model(), seed=None) == 53
    assert train(seeded, model(), seed=1) == 60  # nothing is secret there


def test_a_run_that_the_ledger_refuses_leaves_its_folder_to_a_cheaper_one(tmp_path: Path) -> None:
    run = Run.at(tmp_path)
    ledger = Ledger(1.0, 1e-5, path=run.ledger)
    with pytest.raises(BudgetExceeded):
        fit(run, PLAN, model(), OPTIMISER, ledger)
    assert not Key.read(run)
    assert ledger.epsilon() == 0
    assert fit(run, replace(PLAN, noise_multiplier=50.0), model(), OPTIMISER, ledger) == 60


class Diverging(Fragile):
    """Has weights that are not finite after its eleventh sum."""

    sums = 0

    def clipped_sum(self, *arguments: Any) -> dpsgd.ClippedSum:
        self.sums += 1
        if self.sums == 11:
            self.load({name: value / 0 for name, value in self.weights().items()})
        return super().clipped_sum(*arguments)


def test_a_training_that_diverges_leaves_no_key_and_says_the_same_again(tmp_path: Path) -> None:
    run = Run.at(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(dpsgd.Diverged, match="lower the learning rate"):
            fit(run, PLAN, Diverging(*model().records.arrays, 3), OPTIMISER, open_ledger(run), checkpoint_every=7)
        assert run.checkpoint.exists()  # of the block before, and paid for
        assert not Key.read(run)
    assert [entry.count for entry in Ledger.open(run.ledger).entries] == [14]


@pytest.mark.parametrize("problem", [KeyboardInterrupt, OSError, MemoryError, RuntimeError])
def test_what_may_be_over_the_next_time_leaves_the_run_resumable(
    tmp_path: Path, problem: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.at(tmp_path / "run")

    def fails(*_: object) -> None:
        raise problem

    with monkeypatch.context() as patched:
        patched.setattr(dpsgd, "noisy_mean", fails)
        with pytest.raises(problem):
            train(run, model())
    assert Key.read(run)
    assert train(run, model()) == PLAN.steps
    assert not Key.read(run)


def test_a_run_that_no_accountant_prices_leaves_no_key(tmp_path: Path) -> None:
    run, plan = Run.at(tmp_path / "run"), replace(PLAN, sampler=FixedSizeSampler(120, 12))
    ledger = Ledger(50.0, 1e-5, path=tmp_path / "ledger.json")
    with pytest.raises(UnsupportedEvent):
        fit(run, plan, model(), OPTIMISER, ledger)
    assert not run.checkpoint.exists()
    assert Key.read(run) is None


def test_an_exact_plan_refuses_single_precision_before_it_charges_and_resumes_in_double(tmp_path: Path) -> None:
    plan, run = replace(PLAN, exact=True), Run.create(tmp_path / "run", "test")
    ledger = open_ledger(run, plan)
    with pytest.raises(ValueError, match="an exact plan needs sums in double precision, and weight is not"):
        fit(run, plan, model(), OPTIMISER, ledger)
    vectors, labels = model().records.arrays

    def in_single(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output.float(), target, reduction="none")

    plain: Any = TrainableModule(lambda: nn.Linear(vectors.shape[1], 3).double(), in_single)
    plain.records = ArrayRecords(vectors.astype(float), labels)
    watched: Any = WithCanaries(plain, Canaries(4, "00" * 16))
    watched.records = CanaryRecords(plain.records, Canaries(4, "00" * 16))
    for narrow in (plain, watched):
        for_it = replace(plan, sampler=replace(plan.sampler, n=len(narrow.records)))  # type: ignore[type-var]
        with pytest.raises(ValueError, match="in the model or its loss `float` gives float32"):
            fit(run, for_it, narrow, OPTIMISER, ledger)
    assert ledger.entries == ()

    def double() -> Any:
        twin: Any = LinearClassifier(vectors.shape[1], 3, double=True)
        twin.records = ArrayRecords(vectors, labels)
        return twin

    whole, first, second = (double() for _ in range(3))
    fit(run, plan, whole, OPTIMISER, ledger, seed=2)
    assert all(value.dtype == torch.float64 for value in whole.weights().values())
    other = Run.create(tmp_path / "other", "test")
    died = first.clipped_sum

    def dies(*arguments: Any) -> dpsgd.ClippedSum:
        if calls.pop():
            raise Killed
        return died(*arguments)

    calls = [True] + [False] * 30
    first.clipped_sum = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        fit(other, plan, first, OPTIMISER, open_ledger(other, plan), seed=2, checkpoint_every=7)
    fit(other, plan, second, OPTIMISER, open_ledger(other, plan), seed=2, checkpoint_every=7)
    for name, value in whole.weights().items():
        assert torch.equal(value, second.weights()[name])


def test_a_run_that_another_generator_began_does_not_repeat_its_lost_steps(tmp_path: Path) -> None:
    """A key from before the generator had a name: lost steps are drawn anew and charged again."""
    run = Run.create(tmp_path / "run", "test")
    with pytest.raises(Killed):
        train(run, model(dies_at=20), seed=None)
    before = json.loads((run.private / "key.json").read_text())
    del before["environment"]["generator"]
    run.write_private("key.json", before)
    assert train(run, model(), seed=None) < 60
    assert {"randomgen", "mpmath"} <= before["environment"]["versions"].keys()  # by which its numbers are drawn
    assert ledger_content(run)[0]["count"] == 60


# Models and optimisers of torch

LOSS = nn.CrossEntropyLoss(reduction="none")


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Stepping(torch.optim.SGD):
    """Keeps a number, and draws."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for value in group["params"]:
                self.state[value]["taken"] = self.state[value].get("taken", 0) + 1
                value.grad.add_(torch.randn_like(value), alpha=1e-3)
        return super().step(closure)


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=0.05, amsgrad=True),
        lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, centered=True),
        lambda parameters: Stepping(parameters, lr=0.2, momentum=0.5),
    ],
    ids=["AdamW", "SGD", "RMSprop", "one that draws"],
)
def test_any_optimiser_of_torch_resumes_bit_for_bit(tmp_path: Path, make: Any) -> None:
    x, y = model().records.arrays

    def trained(name: str, on_progress: Any = lambda done, total: None) -> dict[str, torch.Tensor]:
        run = Run.at(tmp_path / name)
        options: Any = {"loss": LOSS, "seed": 1, "checkpoint_every": 7, "on_progress": on_progress}
        return fit_model(PLAN, network, (x, y), optimiser=make, ledger=open_ledger(run), run=run, **options).weights

    def stop(done: int, total: int) -> None:
        if done == 28:
            raise Killed

    whole = trained("whole")
    with pytest.raises(Killed):
        trained("broken", stop)
    assert all(torch.equal(value, whole[name]) for name, value in trained("broken").items())


def test_torchs_sgd_is_ours() -> None:
    x, y = model().records.arrays
    found = []
    for optimiser in (OPTIMISER, lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9)):
        ledger = Ledger(50.0, 1e-5)
        found.append(fit_model(PLAN, LinearClassifier(6, 3), (x, y), optimiser=optimiser, ledger=ledger, seed=2))
        assert [entry.count for entry in ledger.entries] == [60]
    for name, value in found[0].weights.items():
        torch.testing.assert_close(found[1].weights[name], value)


def test_a_module_trains_in_memory_from_the_weights_it_has() -> None:
    x, y = model().records.arrays
    torch.manual_seed(0)
    module, ledger = network(), Ledger(50.0, 1e-5)
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    optimizer = torch.optim.Adam(module.parameters(), 1e-6)
    fitted = fit_model(PLAN, module, (x, y), optimiser=optimizer, ledger=ledger, loss=LOSS)
    assert fitted.model is module
    for name, value in module.named_parameters():
        torch.testing.assert_close(value, before[name], atol=1e-3, rtol=0)
        assert not torch.equal(value, before[name])
    assert ledger.entries[0].count == 60
    again = Ledger(50.0, 1e-5)
    for _ in range(2):  # the same seed twice is charged twice
        fit_model(PLAN, LinearClassifier(6, 3), (x, y), optimiser=OPTIMISER, ledger=again, seed=1)
    assert [entry.count for entry in again.entries] == [60, 60]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"optimiser": None}, "give an optimiser"),
        ({"optimiser": lambda parameters: 3}, "not int"),
        ({"optimiser": lambda parameters: torch.optim.SGD(parameters[:1], 0.1)}, "exactly the parameters"),
        ({"optimiser": torch.optim.LBFGS}, "several times a step"),
        ({"loss": None}, "a module needs a loss"),
        ({"model": 3}, "a model is an nn.Module"),
        ({"records": (np.zeros((5, 6), np.float32), np.zeros(5, int))}, "n=120 records, the data has 5"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_the_charge(wrong: dict[str, Any], said: str) -> None:
    ledger = Ledger(50.0, 1e-5)
    given: dict[str, Any] = {"model": network, "records": model().records, "optimiser": OPTIMISER, "loss": LOSS} | wrong
    with pytest.raises(ValueError, match=said):
        fit_model(PLAN, given.pop("model"), given.pop("records"), ledger=ledger, **given)
    assert not ledger.entries


def test_every_kind_of_plan_is_read_back_from_its_json() -> None:
    plans = [
        PLAN,
        replace(PLAN, exact=True),
        WeightDistributionPlan(ShuffledSampler(24, 8), 0.5, 3.0, 6, 0.1),
        LastIteratePlan(60, 20, 1, 1.0, 50.0, 0.5),
    ]
    for plan in plans:
        assert plan_from_json(json.loads(json.dumps(plan.to_json()))) == plan
    with pytest.raises(ValueError, match="knows no such plan"):
        plan_from_json({"steps": 3})


def test_a_finished_run_answers_for_its_own_settings_alone(tmp_path: Path) -> None:
    run, _ = uninterrupted(tmp_path)
    ledger = open_ledger(run)
    for optimiser, seed in ((SGD(0.01), 1), (OPTIMISER, 2), (OPTIMISER, None)):
        with pytest.raises(RunError, match="finished run with other settings"):
            fit(run, PLAN, model(), optimiser, ledger, seed=seed)
    content, facts = run.read_tensors(run.model)
    old = {name: facts[name] for name in ("steps", "run", "charged")}  # as version 0.1 left it
    run.write_tensors(run.model, content, old)
    assert fit(run, PLAN, model(dies_at=0), SGD(0.01), ledger, seed=1) == 60
