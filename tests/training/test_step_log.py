"""A step's noise meets one sum: a repetition that would sum something else is refused before its release."""

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.budget import Ledger
from sordino.data.samplers import PoissonSampler, Sampler, ShuffledSampler
from sordino.runs import Key, Run, RunError
from sordino.training import SGD, Plan, QuantileClip, dpsgd, fit
from sordino.training.step_log import StepLog

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3
LOSS = nn.CrossEntropyLoss(reduction="none")


class Killed(Exception):  # noqa: N818
    """Stands for a process that ends at once."""


class Hidden:
    """A loss with a setting that its name does not show."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.factor * LOSS(output, target)


def trained(
    folder: Path,
    factor: float = 1.0,
    stop: int | None = None,
    seed: int | None = None,
    sampler: Sampler | None = None,
    **changes: Any,
) -> tuple[int, list[Any]]:
    """Steps of the model, and what was released on the way."""
    plan = Plan(sampler or PoissonSampler(60, 12), **{"l2_clip": 100.0, "noise_multiplier": 2.0, "steps": 20} | changes)
    run, released = Run.at(folder), []
    ledger = Ledger(50.0, 1e-3, path=run.ledger, planned=[(plan.event, "training", "train")])
    release = dpsgd.release

    def watched(*arguments: Any) -> Any:
        if arguments[-1] == stop:
            raise Killed
        released.append(release(*arguments))
        return released[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpsgd, "release", watched)
        fitted = fit(
            plan,
            lambda: nn.Linear(4, 3),
            (X, Y),
            optimiser=SGD(0.1),
            ledger=ledger,
            run=run,
            loss=Hidden(factor),
            checkpoint_every=8,
            seed=seed,
        )
    return fitted.steps, released


# Of gradients that are all clipped, twice the loss gives the same sums: the count of a quantile clip shows it.
@pytest.mark.parametrize("changes", [{}, {"l2_clip": 1e-3, "quantile_clip": QuantileClip(4.0)}])
def test_another_loss_of_the_same_name_gets_no_noise_twice_and_does_not_lose_the_run(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(Killed):
        trained(tmp_path, stop=12, **changes)
    with pytest.raises(RunError, match="step 8 sums other gradients") as refused:
        trained(tmp_path, factor=2.0, **changes)
    assert "with 8 charged steps lost in all" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert trained(tmp_path, factor=2.0, **changes)[0] == 12
    assert [entry.count for entry in Ledger.open(tmp_path / "ledger.json").entries] == [20]
    assert not (tmp_path / "private" / "steps.log").exists()


def test_nothing_is_released_of_a_refused_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        trained(tmp_path, stop=3)
    monkeypatch.setattr(dpsgd, "noisy_mean", lambda *_: pytest.fail("released"))
    with pytest.raises(RunError, match="step 0 sums other gradients"):
        trained(tmp_path, factor=2.0)


def test_the_same_loss_is_resumed_and_repeats_what_was_lost(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained(tmp_path, stop=12)
    assert trained(tmp_path)[0] == 20


def test_batches_of_one_order_are_resumed_with_the_same_loss_alone(tmp_path: Path) -> None:
    shuffled: Any = {"sampler": ShuffledSampler(60, 12)}
    with pytest.raises(Killed):
        trained(tmp_path, stop=12, **shuffled)
    for _ in range(2):
        with pytest.raises(RunError, match=r"Resume .* with what it was started with, or use another folder"):
            trained(tmp_path, factor=2.0, **shuffled)
    assert trained(tmp_path, **shuffled)[0] == 20


def test_a_seeded_experiment_has_nothing_to_hide(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained(tmp_path, stop=12, seed=1)
    assert trained(tmp_path, factor=2.0, seed=1)[0] == 20


def test_a_torn_line_of_the_step_log_is_overwritten_and_any_other_bad_line_is_damage(tmp_path: Path) -> None:
    run, key = Run.at(tmp_path), Key("00" * 16, "name", None, "plan", "data", {})
    path, sums, others = run.private / "steps.log", {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    assert StepLog(run, key).admits(4, 1.0, sums)
    path.write_bytes(path.read_bytes() + b"0 5 abc")
    assert StepLog(run, key).admits(5, 1.0, sums)
    log = StepLog(run, key)
    assert not log.admits(4, 1.0, others)
    assert not log.admits(5, 1.0, others)
    assert not log.admits(5, 2.0, sums)
    assert log.admits(5, 1.0, sums)
    assert log.admits(6, 1.0, others)
    whole = path.read_bytes()
    assert whole.count(b"\n") == 3
    for damaged in (b"0 x " + b"a" * 64 + b"\n", whole.replace(b"0 5 ", b"0 5"), b"\n" + whole):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match="is damaged: restore it"):
            StepLog(run, key)


def test_the_step_log_is_on_disk_by_its_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, synced = Run.at(tmp_path), []
    log = StepLog(run, Key("00" * 16, "name", None, "plan", "data", {}))
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(stat.S_ISDIR(os.fstat(handle).st_mode)))
    for step in (0, 1):
        log.admits(step, 1.0, {"w": torch.zeros(2)})
        log.sync()
    assert synced == [False, True, False]
