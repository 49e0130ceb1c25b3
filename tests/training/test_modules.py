"""Any module under `fit`: killed anywhere it ends in the same bits; what decides its rounding is bound to its key."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.budget import Ledger
from sordino.data import ArrayRecords
from sordino.data.samplers import PoissonSampler
from sordino.gradients import Automatic, ClippedGradients, ExamplesMixError, PerLayer
from sordino.mechanisms.streams import Stream, Streams
from sordino.runs import Key, Run, RunError
from sordino.training import SGD
from sordino.training.dpsgd import ClippedSum
from sordino.training.fitting import fit
from sordino.training.heads import cross_entropy
from sordino.training.modules import FrozenFirst, MixingModule, TrainableModule, frozen_first, trainable_network
from sordino.training.optimisers import Adam, Averaging
from sordino.training.plan import Plan, QuantileClip
from sordino.training.schedules import WarmupCosine

PLAN = Plan(PoissonSampler(60, 9), l2_clip=0.5, noise_multiplier=2.0, steps=24, quantile_clip=QuantileClip(3.0))
OPTIMISER = Adam(WarmupCosine(0.05, 4, 24), weight_decay=1e-3, noise_floor=1e-6)
LOSS = nn.CrossEntropyLoss(reduction="none")
GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.normal(size=(60, 1, 8, 8)).astype(np.float32)
LABELS = GENERATOR.integers(0, 3, 60)
RECORDS = ArrayRecords(IMAGES, LABELS)


class Killed(Exception):  # noqa: N818
    """Stands for a process that ends at once."""


class Fragile(TrainableModule):
    """Dies when it is asked for its k-th sum."""

    left = -1

    def clipped_sum(self, *arguments: Any) -> ClippedSum:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return super().clipped_sum(*arguments)


def cnn() -> nn.Module:
    frozen = nn.Conv2d(1, 2, 3, padding=1).requires_grad_(False)  # random and fixed
    return nn.Sequential(
        *(frozen, nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 3))
    )


def flips(rows: Tensor, generator: np.random.Generator) -> Tensor:
    flipped = torch.from_numpy(generator.random((len(rows), 2)) < 0.5)
    return torch.where(flipped[:, :, None, None, None], rows.flip(-1)[:, None], rows[:, None])


def model(dies_at: int = -1, **changes: Any) -> Fragile:
    trainee = Fragile(cnn, LOSS, **{"augment": flips, "views": 2, "physical_batch": 4} | changes)
    trainee.left = dies_at
    return trainee


def train(run: Run, trainee: Fragile, plan: Plan = PLAN, seed: int | None = 1, records: ArrayRecords = RECORDS) -> int:
    ledger = Ledger(500.0, 1e-5, path=run.ledger, planned=[(plan.event, "training", "train")])
    options: Any = {"averaging": Averaging(0.9), "seed": seed, "checkpoint_every": 5}
    return fit(plan, trainee, records, optimiser=OPTIMISER, ledger=ledger, run=run, **options).steps


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def bond_of(run: Run) -> dict[str, Any]:
    return dict(json.loads((run.private / "key.json").read_text()))


@pytest.mark.parametrize("physical_batch", [4, None])
def test_a_killed_run_ends_in_the_same_bits_wherever_it_was_killed(tmp_path: Path, physical_batch: int | None) -> None:
    run = Run.create(tmp_path / "broken", "test")
    for dies_at in (0, 3, 5, 7, 1):
        with pytest.raises(Killed):
            train(run, model(dies_at, physical_batch=physical_batch))
        torch.rand(3)  # the caller's random numbers have no part in it
        assert bond_of(run)["era"] == 0
    last = model(physical_batch=physical_batch)
    assert train(run, last) == 24
    assert Ledger.open(run.ledger).entries[0].count == 24
    whole = model(choices=last.choices, physical_batch=physical_batch)
    assert train(Run.create(tmp_path / "whole", "test"), whole) == 24
    assert same(last.weights(), whole.weights())
    stored, _ = run.read_tensors(run.model)
    assert same(stored, {name: value.contiguous() for name, value in whole.weights().items()})
    again = model(dies_at=0, physical_batch=physical_batch)
    train(run, again)
    assert same(again.weights(), whole.weights())


def test_a_model_that_was_interrupted_may_be_passed_again(tmp_path: Path) -> None:
    trainee = model(dies_at=3)
    run = Run.create(tmp_path / "run", "test")
    with pytest.raises(Killed):
        train(run, trainee)
    trainee.left = -1
    train(run, trainee)
    whole = model(choices=trainee.choices)
    train(Run.create(tmp_path / "whole", "test"), whole)
    assert same(trainee.weights(), whole.weights())


def _with(run: Run, **changes: Any) -> None:
    run.write_private("key.json", bond_of(run) | changes)


@pytest.mark.parametrize("change", ["physical batch", "missing", "damaged", "another device"])
def test_other_rules_or_chunks_are_another_era_and_lost_steps_are_charged_again(tmp_path: Path, change: str) -> None:
    run = Run.create(tmp_path / "run", "test")
    with pytest.raises(Killed):
        train(run, model(7))  # 10 steps charged, 5 in the checkpoint
    bond = bond_of(run)
    assert bond["choices"]["engine"]["physical_batch"] == 4
    if change == "missing":
        _with(run, choices={})
    elif change == "damaged":
        _with(run, choices={"engine": {"unknown": 1}, "device": "cpu"})
    elif change == "another device":
        _with(run, choices=bond["choices"] | {"device": "cuda 1234"})
    other = model(0, physical_batch=3 if change == "physical batch" else 4)
    with pytest.raises(Killed):
        train(run, other)
    now = bond_of(run)
    assert (now["era"], now["lost"]) == (1, 5)
    old, new = (Key(name=kept.pop("run"), **kept).streams.generator(Stream.NOISE, 6).random(4) for kept in (bond, now))
    assert not np.array_equal(old, new)
    assert train(run, model(physical_batch=other._physical_batch)) == 19
    assert Ledger.open(run.ledger).entries[0].count == 24


def test_choices_are_part_of_the_key() -> None:
    bond = Key("00" * 16, "name", None, "plan", "data", {}, {"engine": 1}, 0, 0)
    one, other = (
        kept.streams.generator(Stream.NOISE).random(4) for kept in (bond, replace(bond, choices={"engine": 2}))
    )
    assert not np.array_equal(one, other)


def test_a_lost_checkpoint_is_lost_work_and_no_second_release_under_the_same_noise(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "test")
    with pytest.raises(Killed):
        train(run, model(7))
    run.checkpoint.unlink()
    with pytest.warns(UserWarning, match="10 of the 10 steps that are charged cannot be repeated"):
        assert train(run, model()) == 14
    assert Ledger.open(run.ledger).entries[0].count == 24


def test_other_models_losses_penalties_and_data_are_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "test")
    with pytest.raises(Killed):
        train(run, model(7))
    for changes in (
        {"l2_penalty": 0.1},
        {"clipping": Automatic()},
        {"clipping": PerLayer()},
        {"augment": None, "views": 1},
    ):
        with pytest.raises(RunError, match="another plan, optimiser, model"):
            train(run, model(**changes))
    with pytest.raises(RunError, match="another plan, optimiser, model"):
        train(run, Fragile(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), LOSS))
    with pytest.raises(RunError, match="other data"):
        train(run, model(), records=ArrayRecords(IMAGES + 1, LABELS))
    with pytest.raises(RunError, match="another plan"):
        # without averaging
        fit(PLAN, model(), RECORDS, optimiser=OPTIMISER, ledger=Ledger.open(run.ledger), run=run, seed=1)


def test_initial_weights_come_from_the_runs_key_frozen_ones_too() -> None:
    first, again, other = model(), model(), model()
    torch.manual_seed(3)
    first.initialise(Streams(bytes(16)))
    torch.manual_seed(4)
    state = torch.get_rng_state()
    again.initialise(Streams(bytes(16)))
    assert torch.equal(state, torch.get_rng_state())
    other.initialise(Streams(bytes(range(16))))
    assert same(first.weights(), again.weights())
    assert not torch.equal(first.weights()["0.weight"], other.weights()["0.weight"])
    assert not torch.equal(first.weights()["6.weight"], other.weights()["6.weight"])
    assert "0.weight" not in first.parameters


def test_sums_are_the_engines_in_pieces_and_empty_batches_are_zero() -> None:
    records = ArrayRecords(IMAGES.reshape(60, -1)[:, :5], LABELS)
    trainee = TrainableModule(lambda: nn.Linear(5, 3), LOSS, physical_batch=2)
    trainee.choose(records, None, 60)
    generator = Streams(bytes(16)).generator(Stream.AUGMENTATION)
    found = trainee.clipped_sum(records, np.arange(60), 0.3, generator)  # four pieces of 16 rows
    whole = ClippedGradients(trainee.model, LOSS, 0.3)(
        torch.from_numpy(IMAGES.reshape(60, -1)[:, :5]), torch.from_numpy(LABELS)
    )
    for name, value in whole.sums.items():
        torch.testing.assert_close(found.sums[name], value)
    torch.testing.assert_close(found.norms, whole.norms)
    empty = trainee.clipped_sum(records, np.zeros(0, np.int64), 0.3, generator)
    assert len(empty.norms) == 0
    assert {name: value.shape for name, value in empty.sums.items()} == {"weight": (3, 5), "bias": (3,)}
    assert not any(value.any() for value in empty.sums.values())


def test_a_step_repeats_its_dropout_and_augmentation_and_the_next_has_its_own() -> None:
    trainee = model()
    trainee.choose(RECORDS, None, 9)
    streams = Streams(bytes(16))

    def sums(step: int) -> dict[str, Tensor]:
        return trainee.clipped_sum(RECORDS, np.arange(20), 1.0, streams.generator(Stream.AUGMENTATION, step)).sums

    first = sums(0)
    torch.rand(5)
    assert same(first, sums(0))
    assert not same(first, sums(1))


class Endless:
    """Records that are made as they are asked for; it notes how many rows exist at once."""

    def __init__(self, n: int) -> None:
        self._n, self.most = n, 0

    def __len__(self) -> int:
        return self._n

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        self.most = max(self.most, len(indices))
        return torch.from_numpy(np.sin(indices, dtype=np.float32)[:, None] * np.ones(5, np.float32)), torch.from_numpy(
            indices % 3
        )

    def fingerprint(self, key: bytes) -> str:
        return "endless"


def test_rows_held_at_once_do_not_grow_with_the_logical_batch() -> None:
    model = TrainableModule(nn.Linear(5, 3), LOSS, physical_batch=16)
    most = []
    for n in (500, 20_000):
        records = Endless(n)
        model.choose(records, None, n)
        records.most = 0
        found = model.clipped_sum(records, np.arange(n), 1.0, np.random.default_rng(0))
        assert len(found.norms) == n
        most.append(records.most)
    assert most[0] == most[1] <= 8 * 16


def test_memory_mapped_arrays_tensors_and_several_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(65, 3)

        def forward(self, image: Tensor, extra: Tensor) -> Tensor:
            return self.head(torch.cat([image.flatten(1), extra[:, None]], 1))  # type: ignore[no-any-return]

    extra = torch.linspace(0, 1, 60)
    found = []
    for images in (mapped, IMAGES, torch.from_numpy(IMAGES)):
        records = ArrayRecords((images, extra), torch.from_numpy(LABELS))
        trainee = TrainableModule(Two, LOSS, physical_batch=8)
        trainee.choose(records, None, 9)
        assert [len(array) for array in records.arrays] == [60, 60, 60]
        found.append(
            trainee.clipped_sum(records, np.arange(0, 60, 3), 1.0, Streams(bytes(16)).generator(Stream.AUGMENTATION))
        )
    assert same(found[0].sums, found[1].sums)
    assert same(found[0].sums, found[2].sums)


class Drawing(nn.Module):
    """Hides inputs by draws from NumPy and from Python, and counts its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 3)
        self.register_buffer("passed", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.passed += 1
        shown = [not self.training or (np.random.random() < 0.5 and random.random() < 0.5) for _ in x]
        return self.layer(x.flatten(1) * torch.tensor(shown)[:, None])  # type: ignore[no-any-return]


def test_a_step_is_repeated_whatever_a_model_draws_from() -> None:
    """The noise of a lost step comes again, so the sum under it must be the same."""
    records = ArrayRecords(IMAGES, LABELS)
    trainee = TrainableModule(Drawing, LOSS, physical_batch=2)
    trainee.choose(records, None, 9)
    state, found = random.getstate(), []
    for indices in (np.arange(40), np.arange(40), np.arange(0), np.arange(3)):
        found.append(trainee.clipped_sum(records, indices, 1.0, Streams(bytes(16)).generator(Stream.AUGMENTATION)))
    assert same(found[0].sums, found[1].sums)
    assert 0 < int((found[0].norms > 10 * found[0].norms.min()).sum()) < 40
    assert random.getstate() == state
    assert int(trainee.weights()["passed"]) == 4  # steps, whatever was drawn for them


def test_bad_input_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="one row for each record"):
        ArrayRecords(IMAGES, LABELS[:50])
    with pytest.raises(ValueError, match="3 views need an `augment`"):
        TrainableModule(cnn, LOSS, views=3)
    with pytest.raises(ValueError, match="no parameter to train"):
        TrainableModule(nn.Flatten, LOSS)
    trainee = model(augment=lambda rows, generator: rows)
    with pytest.raises(ValueError, match=r"2 views of each of the 9 rows"):
        trainee.choose(RECORDS, None, 9)
    with pytest.raises(ValueError, match="another model"):
        trainee.load({"w": torch.zeros(1)})
    mixing = TrainableModule(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3)), LOSS)
    with pytest.raises(ExamplesMixError):
        mixing.choose(RECORDS, None, 9)


# FrozenFirst: Frozen first layers computed once: the same model, the same clipped sums, and weights that never move.


X = np.random.default_rng(0).normal(size=(60, 1, 8, 8)).astype("float32")
Y = np.random.default_rng(1).integers(3, size=60)
FROZEN_RECORDS = ArrayRecords(X, Y)


def half_frozen() -> nn.Sequential:
    frozen = nn.Conv2d(1, 4, 3).requires_grad_(False)
    return nn.Sequential(frozen, nn.ReLU(), nn.Flatten(), nn.Linear(144, 5), nn.Tanh(), nn.Linear(5, 3))


def test_sums_are_those_of_the_whole_network() -> None:
    both = TrainableModule(half_frozen, cross_entropy), FrozenFirst(half_frozen, cross_entropy)
    streams = Streams(bytes(range(16)))
    for trainee in both:
        trainee.choose(FROZEN_RECORDS, None, 20)
        trainee.initialise(streams)
    whole, cut = both
    assert {name: value.shape for name, value in whole.weights().items()} == {
        name: value.shape for name, value in cut.weights().items()
    }
    for name, value in whole.weights().items():
        torch.testing.assert_close(cut.weights()[name], value)
    rows = np.arange(0, 60, 3)
    sums = [trainee.clipped_sum(FROZEN_RECORDS, rows, 0.3, np.random.default_rng(0)) for trainee in both]
    assert sums[0].sums.keys() == sums[1].sums.keys()
    for name, value in sums[0].sums.items():
        torch.testing.assert_close(sums[1].sums[name], value)
    torch.testing.assert_close(sums[0].norms, sums[1].norms)


def test_a_run_keeps_frozen_weights_and_goes_on_with_them(tmp_path: Path) -> None:
    plan, run = Plan(PoissonSampler(60, 20), 1.0, 2.0, 8), Run.at(tmp_path / "run")

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    def trained(on_progress=lambda done, total: None) -> TrainableModule:
        trainee = trainable_network(half_frozen, cross_entropy)
        fit(
            plan,
            trainee,
            FROZEN_RECORDS,
            optimiser=SGD(0.5),
            ledger=Ledger(path=run.ledger),
            run=run,
            checkpoint_every=2,
            on_progress=on_progress,
        )
        return trainee

    with pytest.raises(KeyboardInterrupt):
        trained(stop)
    before = run.read_tensors(run.checkpoint)[0]
    trainee = trained()
    weights = run.read_tensors(run.model)[0]
    assert "0.weight" not in trainee.parameters
    assert torch.equal(weights["0.weight"], before["weight.0.weight"])
    assert not torch.equal(weights["3.weight"], before["weight.3.weight"])
    # The features that the last steps saw are those of the weights that are released.
    model = half_frozen()
    model.load_state_dict(weights)
    np.testing.assert_allclose(
        trainee._rows(FROZEN_RECORDS, np.arange(60))[0], model[:3](torch.from_numpy(X)).detach().numpy(), atol=1e-6
    )


def test_other_weights_make_other_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.training.modules._BLOCK", 16)
    trainee = FrozenFirst(half_frozen, cross_entropy)
    rows = np.array([3, 20, 59])
    before = trainee._rows(FROZEN_RECORDS, rows)[0].clone()
    weights = {name: value.clone() for name, value in trainee.weights().items()}
    trainee.load(weights | {"3.bias": weights["3.bias"] + 1})
    assert torch.equal(trainee._rows(FROZEN_RECORDS, rows)[0], before)
    trainee.load(weights | {"0.bias": weights["0.bias"] + 1})
    assert not torch.equal(trainee._rows(FROZEN_RECORDS, rows)[0], before)


def test_what_counts_as_frozen_first() -> None:
    assert frozen_first(half_frozen()) == 3
    trained = half_frozen()
    trained[0].requires_grad_(True)
    assert frozen_first(trained) == 0
    # Dropout is drawn anew each step, so nothing from there on can be computed once.
    assert frozen_first(nn.Sequential(nn.Dropout(0.1), nn.Linear(2, 2).requires_grad_(False))) == 0
    assert frozen_first(nn.Linear(2, 2).requires_grad_(False)) == 0
    assert isinstance(trainable_network(lambda: nn.Linear(64, 3), cross_entropy), TrainableModule)


# MixingModule: Per-example gradients through shared statistics, against one backward pass for each example.


MIXED = np.random.default_rng(3)
MIXED_IMAGES, MIXED_LABELS = MIXED.normal(size=(20, 1, 6, 6)).astype(np.float32), MIXED.integers(0, 3, 20)


class BesidePublic(nn.Module):
    """A batch norm over the batch and public images."""

    def __init__(self) -> None:
        super().__init__()
        norms = [
            nn.BatchNorm2d(4, affine=False, track_running_stats=False),
            nn.BatchNorm1d(5, track_running_stats=False),
        ]
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 4, 3), nn.ReLU(), norms[0], nn.Flatten(), nn.Linear(64, 5), norms[1], nn.Linear(5, 3))
        )
        self.register_buffer("public", torch.ones(2, 1, 6, 6) * torch.tensor([0.3, -0.8])[:, None, None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat((x, self.public)))[: len(x)]  # type: ignore[no-any-return]


def summed(rows: np.ndarray, clip: float, images: np.ndarray = MIXED_IMAGES) -> ClippedSum:
    model = MixingModule(BesidePublic, LOSS)
    return model.clipped_sum(ArrayRecords(images, MIXED_LABELS), rows, clip, np.random.default_rng(0))


@pytest.mark.parametrize("clip", [0.05, 0.5, 1e6])
def test_sums_are_those_of_one_backward_pass_an_example(clip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.training.modules._GRADIENTS_AT_ONCE", 1000)  # several pieces
    made, rows = MixingModule(BesidePublic, LOSS), np.array([1, 4, 5, 9, 17])
    found = summed(rows, clip)
    sums = {name: torch.zeros_like(value) for name, value in made.parameters.items()}
    for place in range(len(rows)):
        losses = functional.cross_entropy(
            made.model(torch.from_numpy(MIXED_IMAGES[rows])), torch.from_numpy(MIXED_LABELS[rows]), reduction="none"
        )
        gradients = torch.autograd.grad(losses[place], list(made.parameters.values()))
        length = torch.sqrt(sum(value.square().sum() for value in gradients))
        assert found.norms[place] == pytest.approx(float(length), rel=1e-4)
        for total, value in zip(sums.values(), gradients, strict=True):
            total += value.detach() * min(1.0, clip / float(length))
    for name, value in sums.items():
        torch.testing.assert_close(found.sums[name], value, rtol=1e-4, atol=1e-6)


def test_one_example_moves_the_sum_by_more_than_a_clip() -> None:
    """Why it has no price: with or without one example, in a batch of its like."""
    rows, clip = np.arange(20), 0.01
    moved = summed(rows, clip).sums
    outlier = MIXED_IMAGES.copy()
    outlier[0] = 1e3 * MIXED_IMAGES[0]
    other = summed(rows, clip, outlier).sums
    assert torch.sqrt(sum((moved[name] - other[name]).square().sum() for name in moved)) > 3 * clip


def test_an_empty_batch_adds_nothing_and_so_does_what_is_not_finite() -> None:
    assert all(not bool(value.any()) for value in summed(np.arange(0), 1.0).sums.values())
    broken = MIXED_IMAGES.copy()
    broken[0] = np.nan
    found = summed(np.arange(20), 1.0, broken)
    assert all(not bool(value.any()) for value in found.sums.values())  # it has spoilt everybody's


def test_running_statistics_are_refused() -> None:
    with pytest.raises(ValueError, match="layer 1 keeps running statistics"):
        MixingModule(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3)), LOSS)
