"""Canaries in a training: within the clip, orthogonal, scored from releases, and the same ones after a kill."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino.audit import one_run_lower_bound, sensitivity_probe
from sordino.audit.sensitivity import adversarial_rows
from sordino.budget import Ledger
from sordino.data import ArrayRecords
from sordino.data.samplers import PoissonSampler
from sordino.mechanisms.streams import Streams
from sordino.runs import Run, RunError
from sordino.training import SGD, LinearClassifier, Plan, fit
from sordino.training.canaries import (
    Canaries,
    CanaryRecords,
    Scoring,
    WithCanaries,
    begin_or_resume,
    keep_outcome,
    outcome,
)
from sordino.training.plan import QuantileClip

CANARIES = Canaries(30, "00" * 16)
GENERATOR = np.random.default_rng(0)


REAL = ArrayRecords(np.random.default_rng(1).normal(size=(60, 20)).astype(np.float32), np.arange(60) % 3)
RECORDS = CanaryRecords(REAL, CANARIES)


def started(canaries: Canaries = CANARIES) -> WithCanaries:
    trainee = WithCanaries(LinearClassifier(20, 3), canaries)
    trainee.initialise(Streams.fresh())
    return trainee


def test_a_canary_that_is_in_adds_the_clip_at_its_place_and_the_others_add_nothing() -> None:
    trainee = started()
    real = trainee.clipped_sum(RECORDS, np.arange(60), 0.3, GENERATOR).sums
    moved = set()
    for canary in range(30):
        sums, norms = trainee.clipped_sum(RECORDS, np.append(np.arange(60), 60 + canary), 0.3, GENERATOR)
        change = torch.cat([(sums[name] - real[name]).flatten() for name in ("bias", "weight")])
        if CANARIES.coins[canary]:
            place = int(change.abs().argmax())
            assert change[place].item() == pytest.approx(0.3, rel=1e-5)
            assert change.abs().sum().item() == pytest.approx(0.3, rel=1e-5)
            moved.add(place)
        else:
            assert not change.any()
        assert len(norms) == 60 + CANARIES.coins[canary]
    assert len(moved) == CANARIES.coins.sum()


def test_in_double_precision_a_canary_adds_the_clip_in_double_precision() -> None:
    trainee = WithCanaries(LinearClassifier(20, 3, double=True), CANARIES)
    sums, norms = trainee.clipped_sum(RECORDS, 60 + np.flatnonzero(CANARIES.coins)[:1], 0.1, GENERATOR)
    assert sum(value.sum().item() for value in sums.values()) == 0.1 == norms.item()


def test_a_canary_that_is_out_counts_in_a_quantile_clip_like_an_absent_record() -> None:
    trainee, clip = started(), QuantileClip(noise_multiplier=10.0)

    def count(indices: list[int]) -> float:
        return clip.count(trainee.clipped_sum(RECORDS, np.array(indices, dtype=np.int64), 0.3, GENERATOR).norms, 0.3)

    out = [60 + canary for canary in np.flatnonzero(~CANARIES.coins)]
    for real in ([], list(range(60))):
        assert count([*real, *out]) == count(real)


def test_the_sensitivity_stays_the_clip() -> None:
    records = ArrayRecords(adversarial_rows((20,), 12, Streams.fresh()), np.arange(12) % 3)
    few = Canaries(12, "01" * 16)
    watched = CanaryRecords(records, few)
    found = sensitivity_probe(WithCanaries(LinearClassifier(20, 3), few), watched, 0.3, Streams.fresh())
    assert found.p_value == 1


def test_coins_are_fair_and_places_apart() -> None:
    many = Canaries(4000, "02" * 16)
    assert 0.45 < many.coins.mean() < 0.55
    places = many.places({"b": torch.zeros(100, 50), "a": torch.zeros(10)})
    assert sorted(torch.cat([which for which, _ in places.values()]).tolist()) == list(range(4000))
    assert all(len(where) == len(set(where.tolist())) for _, where in places.values())
    assert int(places["a"][1].max()) < 10
    with pytest.raises(ValueError, match="has 10: ask for fewer"):
        many.places({"a": torch.zeros(10)})


def train(folder: Path, sigma: float = 0.5, **ways: Any) -> Run:
    run = Run.at(folder)
    planted = begin_or_resume(run, 60, 3)
    plan = Plan(PoissonSampler(120, 60), l2_clip=0.3, noise_multiplier=sigma, steps=40)
    model, optimiser = WithCanaries(LinearClassifier(20, 3), planted), Scoring(SGD(0.5, momentum=0.9), planted)
    ledger = Ledger(target_delta=1e-5, path=run.ledger)
    options: Any = {"on_trained": lambda state: keep_outcome(run, planted, state), "seed": 3, "checkpoint_every": 10}
    records = CanaryRecords(REAL, planted)
    fit(plan, model, records, optimiser=optimiser, ledger=ledger, run=run, **options | ways)
    return run


def test_one_run_with_little_noise_is_seen_through(tmp_path: Path) -> None:
    coins, scores = outcome(train(tmp_path / "run"))
    assert one_run_lower_bound(scores, coins, 1e-5) > 0.3
    assert set(coins.tolist()) == {True, False}


def test_one_run_with_much_noise_is_not(tmp_path: Path) -> None:
    coins, scores = outcome(train(tmp_path / "run", sigma=30.0))
    assert one_run_lower_bound(scores, coins, 1e-5) < 0.5


def test_a_killed_run_goes_on_to_the_same_weights_and_scores(tmp_path: Path) -> None:
    class Killed(Exception):  # noqa: N818
        pass

    def kill(done: int, total: int) -> None:
        if done == 20:
            raise Killed

    def kill_at_the_end(state: Any) -> None:
        raise Killed

    whole = train(tmp_path / "whole")
    for way in ({"on_progress": kill}, {"on_trained": kill_at_the_end}):
        with pytest.raises(Killed):
            train(tmp_path / next(iter(way)), **way)
        resumed = train(tmp_path / next(iter(way)))
        assert resumed.model.read_bytes() == whole.model.read_bytes()
        for before, now in zip(outcome(whole), outcome(resumed), strict=True):
            np.testing.assert_array_equal(before, now)


def test_other_canaries_are_other_data(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 20:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(tmp_path / "run", on_progress=stop)
    run = Run(tmp_path / "run")
    run.write_private("canaries.json", {"secret": "03" * 16})
    with pytest.raises(RunError, match="other data"):
        train(tmp_path / "run")


@pytest.mark.parametrize("content", ["{", "[]", '{"secret": "zz"}', '{"secret": "00", "coins": [1], "scores": []}'])
def test_damaged_canaries_are_said(tmp_path: Path, content: str) -> None:
    run = Run.at(tmp_path / "run")
    with pytest.raises(RunError, match="lost its canaries"):
        outcome(run)
    (run.private / "canaries.json").write_text(content)
    with pytest.raises(RunError, match="damaged"):
        outcome(run)


def test_fingerprints_with_canaries_bind_the_keys_of_dicts() -> None:
    a, b = np.zeros((4, 2), np.float32), np.ones((4, 2), np.float32)
    canaries = Canaries(3, "00" * 16)
    both = [CanaryRecords(ArrayRecords(x, np.arange(4)), canaries) for x in ({"a": a, "b": b}, {"b": a, "a": b})]
    assert both[0].fingerprint(b"k" * 16) != both[1].fingerprint(b"k" * 16)
