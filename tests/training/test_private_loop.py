"""The drop-in: what it steps on, what it adds, what it charges, and every misuse it must refuse."""

import copy
import os
import pickle
import subprocess
import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

import sordino
from sordino.budget import BudgetExceeded, Gaussian, Ledger, cost
from sordino.data import as_records
from sordino.gradients import ClippedGradients, ExamplesMixError
from sordino.mechanisms import memory
from sordino.mechanisms.streams import Stream, StreamsError
from sordino.runs import Diverged, Key, Run, RunError
from sordino.training.optimisers import OptimiserError
from sordino.training.plan import QuantileClip
from sordino.training.private_loop import LoopError, PrivateLoop

LOSS = nn.CrossEntropyLoss(reduction="none")
GENERATOR = torch.Generator().manual_seed(0)
DATA = TensorDataset(torch.randn(80, 6, generator=GENERATOR), torch.randint(0, 3, (80,), generator=GENERATOR))
SETTINGS = {
    **{"expected_batch_size": 8, "epochs": 2, "l2_clip": 0.5},
    **{"target_epsilon": 5.0, "target_delta": 1e-4, "physical_batch": 8},
}


class Items(Dataset[tuple[Tensor, int]]):
    """The same data item by item, with an integer for a label."""

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return DATA.tensors[0][index], int(DATA.tensors[1][index])


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def loop(model: nn.Module | None = None, dataset: Any = DATA, **changes: Any) -> PrivateLoop:
    model = model or network()
    optimizer = changes.pop("optimizer", None) or torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    private: PrivateLoop = sordino.make_private(
        *(model, optimizer, changes.pop("loss", LOSS), dataset), **SETTINGS | changes
    )
    return private


def test_a_whole_training_spends_its_plan() -> None:
    model = network()
    private = loop(model)
    assert private.epsilon() == 0
    sizes = []
    for x, y in private.batches():
        sizes.append(len(x))
        assert x.shape[1:] == (6,)
        assert y.dtype == torch.int64
        private.step(x, y)
    assert len(sizes) == 20 == private.plan.steps
    assert len(set(sizes)) > 3  # Poisson
    assert 4.99 < private.epsilon() <= 5
    assert private.cost() == cost(private.plan.event, 1e-4)
    assert private.cost().accountant == "pld"
    assert not torch.equal(model[0].weight, network()[0].weight)  # type: ignore[index]
    with pytest.raises(LoopError, match="all 20 planned steps are drawn"):
        next(private.batches())
    assert private.ledger.entries[0].count == 20
    assert not private.ledger.entries[0].seeded


@pytest.mark.parametrize("dataset", [DATA, Items()])
def test_a_step_is_the_clipped_sum_with_noise_over_the_expected_batch(dataset: Any) -> None:
    model, twin = network(), network()
    private = loop(model, dataset, seed=3)
    optimizer = torch.optim.SGD(twin.parameters(), 0.5, momentum=0.9)
    streams = private._underway.key.streams
    for step, (x, y) in enumerate(private.batches(3)):
        drawn = private.plan.sampler.draw(streams, step)
        assert torch.equal(x, DATA.tensors[0][drawn])
        assert torch.equal(y, DATA.tensors[1][drawn])
        sums = ClippedGradients(twin, LOSS, 0.5)(x, y).sums
        private.step(x, y)
        noise = streams.generator(Stream.NOISE, step)
        for name, parameter in sorted(twin.named_parameters()):
            normal = noise.normal(0.0, private.plan.noise_multiplier * 0.5, parameter.shape)
            parameter.grad = ((sums[name].double() + torch.from_numpy(normal)) / 8).float()
        optimizer.step()
    for (name, value), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(value, other, msg=name)
    assert private.ledger.entries[0].seeded


@pytest.mark.parametrize("dataset", [DATA, Items()])
def test_empty_batches_are_stepped_on_as_any_other(dataset: Any) -> None:
    model = network()
    private = loop(model, dataset, expected_batch_size=1, epochs=0.2)
    empty = 0
    for x, y in private.batches():
        assert (x.shape[1:], x.dtype, y.dtype) == ((6,), torch.float32, torch.int64)
        before = [value.clone() for value in model.parameters()]
        private.step(x, y)
        if len(x) == 0:
            empty += 1
            assert y.shape == (0,)
            assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
            deviation = private.plan.noise_multiplier * 0.5
            assert (
                0.2 * deviation < float(torch.cat([p.grad.flatten() for p in model.parameters()]).std()) < 5 * deviation
            )  # type: ignore[union-attr]
    assert empty > 0


def test_batches_are_charged_before_they_are_read(tmp_path: Path) -> None:
    ledger = Ledger(5.0, 1e-4, path=tmp_path / "ledger.json")
    seen: list[int] = []

    class Watching(Items):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            entries = Ledger.open(ledger.path).entries  # type: ignore[arg-type]
            seen.append(entries[0].count if entries else 0)
            return super().__getitem__(index)

    private = loop(dataset=Watching(), ledger=ledger, target_epsilon=None, target_delta=None)
    before = len(seen)  # rows on which rules were measured
    for number, (x, y) in enumerate(private.batches(5), start=1):
        assert seen[before:] == [number] * len(seen[before:])
        before = len(seen)
        private.step(x, y)
    assert private.epsilon() == Ledger.open(ledger.path).epsilon() > 0  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of torch's threads: the child does not use them
def test_a_forked_child_neither_draws_nor_steps(tmp_path: Path) -> None:
    ledger = Ledger(5.0, 1e-4, path=tmp_path / "ledger.json")
    private = loop(ledger=ledger, target_epsilon=None, target_delta=None)
    x, y = next(private.batches(1))
    child = os.fork()
    if child == 0:
        refused = 0
        for attempt in (lambda: private.step(x, y), lambda: next(private.batches())):
            try:
                attempt()
            except StreamsError:
                refused += 1
        os._exit(0 if refused == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Ledger.open(tmp_path / "ledger.json").entries[0].count == 1  # nothing was charged there
    private.step(x, y)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loop_is_not_copied(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(LoopError, match="not copied or pickled"):
        copied(loop())


def test_a_ledger_on_disk_is_charged_in_blocks_before_they_are_drawn(tmp_path: Path) -> None:
    ledger, written = Ledger(5.0, 1e-4, path=tmp_path / "ledger.json"), []
    private = loop(ledger=ledger, epochs=10, target_epsilon=None, target_delta=None)
    charge = ledger.raise_count
    ledger.raise_count = lambda number, count: (written.append(count), charge(number, count))[1]  # type: ignore[method-assign]

    def trained(steps: int | None) -> None:
        for x, y in private.batches(steps):
            assert private.drawn <= Ledger.open(tmp_path / "ledger.json").entries[0].count
            private.step(x, y)

    assert private.plan.steps == 100
    trained(7)
    assert (private.drawn, written) == (7, [5, 7])  # what was asked for, and no more
    x, y = next(private.batches())
    private.step(x, y)
    assert (private.drawn, written) == (8, [5, 7, 10])  # a loop that is left has paid for its block
    trained(None)
    assert (private.drawn, written) == (100, [5, 7, *range(10, 105, 5)])
    assert private.cost() == cost(private.plan.event, 1e-4)


def test_a_shared_ledger_is_filled_and_never_overspent() -> None:
    ledger = Ledger(5.0, 1e-4)
    ledger.spend(Gaussian(6.0), "normalisation")
    private = loop(ledger=ledger, target_epsilon=None, target_delta=None)
    assert private.plan.noise_multiplier > loop().plan.noise_multiplier
    for x, y in private.batches():
        private.step(x, y)
    assert ledger.epsilon() <= 5
    assert private.epsilon() == ledger.epsilon()
    with pytest.raises(BudgetExceeded):
        ledger.spend(Gaussian(1.0), "one more")
    with pytest.raises(ValueError, match="δ"):
        loop(ledger=Ledger(5.0, 1e-5))
    with pytest.raises(ValueError, match="target_epsilon"):
        loop(target_epsilon=None)


def test_each_batch_is_stepped_on_once_itself_and_unchanged() -> None:
    private = loop(expected_batch_size=20)
    with pytest.raises(LoopError, match="no batch is waiting"):
        private.step(*DATA[:20])
    batches: Iterator[Any] = private.batches()
    x, y = next(batches)
    with pytest.raises(LoopError, match="before drawing the next"):
        next(private.batches())
    for wrong in ((x.clone(), y), (x, y.clone()), (y, x), DATA[:20], (x[:5], y[:5])):
        with pytest.raises(LoopError, match="itself and unchanged") as caught:
            private.step(*wrong)
        assert "\n" not in str(caught.value)
    assert private.drawn == private.ledger.entries[0].count == 1
    private.step(x, y)
    with pytest.raises(LoopError, match="no batch is waiting"):
        private.step(x, y)
    batches = private.batches()
    old, (x, y) = (x, y), next(batches)
    with pytest.raises(LoopError, match="itself and unchanged"):
        private.step(*old)
    x.sub_(x.mean())  # an example would now depend on the others
    with pytest.raises(LoopError, match="itself and unchanged"):
        private.step(x, y)
    with pytest.raises(LoopError, match="before drawing the next"):
        next(batches)
    assert private.ledger.entries[0].count == 2


def test_the_optimizer_holds_exactly_what_is_trained() -> None:
    model = network()
    with pytest.raises(OptimiserError, match="exactly the parameters"):
        loop(model, optimizer=torch.optim.SGD(model[0].parameters(), 0.1))  # type: ignore[index]
    with pytest.raises(OptimiserError, match="exactly the parameters"):
        loop(model, optimizer=torch.optim.SGD(network().parameters(), 0.1))
    model[0].requires_grad_(False)  # type: ignore[index]
    with pytest.raises(OptimiserError, match="LBFGS"):
        loop(network(), optimizer=torch.optim.LBFGS(network().parameters()))
    trained = [value for value in model.parameters() if value.requires_grad]
    private = loop(model, optimizer=torch.optim.SGD([{"params": trained[:1]}, {"params": trained[1:], "lr": 1.0}], 0.1))
    x, y = next(private.batches())
    model[0].requires_grad_(True)  # type: ignore[index]
    with pytest.raises(LoopError, match="have changed"):
        private.step(x, y)
    model[0].requires_grad_(False)  # type: ignore[index]
    private.step(x, y)
    assert torch.equal(model[0].weight, network()[0].weight)  # type: ignore[index]


def test_frozen_parameters_in_the_optimizer_stay_as_they_are() -> None:
    """LoRA's habit: everything goes to the optimizer, and most of it is frozen."""
    model = network()
    model[0].requires_grad_(False)  # type: ignore[index]
    before = model[0].weight.clone()  # type: ignore[index]
    private = loop(model, optimizer=torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.1))
    for x, y in private.batches(2):
        model[0].weight.grad = torch.full_like(before, 1e6)  # type: ignore[index]
        private.step(x, y)
    assert torch.equal(model[0].weight, before)  # type: ignore[index]
    assert not torch.equal(model[2].weight, network()[2].weight)  # type: ignore[index]


class Twice(torch.optim.SGD):
    """Wants to look at the loss again, as SAM does."""

    def step(self, closure: Any = None) -> Any:
        if closure is None:
            raise RuntimeError("a closure is needed")
        return super().step(closure)


class Counting(torch.optim.SGD):
    """Keeps something that a copy does not have."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)


class Uncopied(torch.optim.SGD):
    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("copied")


def test_memory_is_looked_at_before_the_optimizer_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 100.0)
    model = network()
    with pytest.raises(memory.NotEnoughMemory, match="to train the model"):
        loop(model, optimizer=Uncopied(model.parameters(), 0.1))


def test_an_optimizer_that_cannot_step_is_refused_before_anything_is_charged() -> None:
    for optimizer, message in ((torch.optim.SparseAdam, "SparseAdam cannot step .*dense"), (Twice, "a closure")):
        model, ledger = network(), Ledger(5.0, 1e-4)
        with pytest.raises(OptimiserError, match=message) as error:
            loop(model, optimizer=optimizer(model.parameters(), 0.1), ledger=ledger)  # type: ignore[operator]
        assert "\n" not in str(error.value)
        assert not ledger.entries


def test_trying_the_optimizer_leaves_no_trace() -> None:
    model = network()
    optimizer = Counting(model.parameters(), 0.1, weight_decay=0.1, momentum=0.9)
    torch.optim.lr_scheduler.StepLR(optimizer, 5)
    stepped: list[int] = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    private = loop(model, optimizer=optimizer)
    assert (optimizer.steps, stepped, len(optimizer.state)) == (0, [], 0)
    assert all(value.grad is None for value in model.parameters())
    assert torch.equal(model[0].weight, network()[0].weight)  # type: ignore[index]
    private.step(*next(private.batches()))
    assert optimizer.steps == 1
    assert stepped


class Encoding(UserDict[str, Any]):
    """A mapping that is no dict, as tokenizers of Hugging Face give."""


class Words(Dataset[dict[str, Tensor]]):
    def __init__(self, labels: str) -> None:
        self._labels = labels

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"features": DATA.tensors[0][index], self._labels: DATA.tensors[1][index]}


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, features: Tensor) -> Any:
        return self.layers(features)


@pytest.mark.parametrize("collate", [None, lambda items: Encoding(default_collate(items))])
@pytest.mark.parametrize("labels", ["labels", "label"])
def test_items_with_labels_and_batches_of_any_mapping(labels: str, collate: Any) -> None:
    model, plain = Named(), network()
    private, expected = loop(model, Words(labels), collate_fn=collate, seed=1), loop(plain, seed=1)
    for (x, y), (features, labels) in zip(private.batches(3), expected.batches(3), strict=True):
        assert torch.equal(x["features"], features)
        private.step(x, y)
        expected.step(features, labels)
    assert torch.equal(model.layers[0].weight, plain[0].weight)  # type: ignore[index]


def test_inference_mode_around_the_data_or_the_loop() -> None:
    with torch.inference_mode():
        made = TensorDataset(*(tensor.clone() for tensor in DATA.tensors))
    model, plain = network(), network()
    private, expected = loop(model, made, seed=1), loop(plain, seed=1)
    with torch.inference_mode():
        private.step(*next(private.batches()))
    expected.step(*next(expected.batches()))
    assert torch.equal(model[0].weight, plain[0].weight)  # type: ignore[index]


def test_an_empty_draw_that_cannot_be_collated_is_refused_before_anything_is_charged() -> None:
    def several(items: list[Any]) -> Any:
        if len(items) < 2:
            raise ValueError("too few items")
        return default_collate(items)

    ledger = Ledger(5.0, 1e-4)
    with pytest.raises(ValueError, match="too few items"):
        loop(ledger=ledger, collate_fn=several)
    assert not ledger.entries


def test_gradients_of_the_users_own_backward_do_not_reach_the_weights() -> None:
    model, clean = network(), network()
    for network_, poison in ((model, 1e6), (clean, 0.0)):
        private = loop(network_, seed=1)
        for x, y in private.batches(2):
            for value in network_.parameters():
                value.grad = torch.full_like(value, poison)
            private.step(x, y)
    for value, other in zip(model.parameters(), clean.parameters(), strict=True):
        torch.testing.assert_close(value, other)


def test_a_model_that_mixes_is_refused_before_anything_is_charged_or_when_it_begins_to() -> None:
    ledger = Ledger(5.0, 1e-4)
    mixing = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3))
    with pytest.raises(ExamplesMixError, match="BatchNorm1d"):
        loop(mixing, ledger=ledger)
    assert not ledger.entries
    private = loop(mixing.eval(), expected_batch_size=40)
    x, y = next(private.batches())
    private.step(x, y)
    mixing.train()
    spent = private.epsilon()
    with pytest.raises(ValueError, match="mode, have changed since they were checked"):
        next(private.batches())
    assert private.epsilon() == spent
    mixing.eval()
    x, y = next(private.batches())
    mixing.train()
    before = [value.clone() for value in mixing.parameters()]
    with pytest.raises(ValueError, match="mode, have changed since they were checked"):
        private.step(x, y)
    assert all(torch.equal(old, new) for old, new in zip(before, mixing.parameters(), strict=True))
    mixing.eval()
    private.step(x, y)  # nothing was shown, so the batch may still be used


class Crowded(nn.Module):
    """An expert that takes four examples of a batch and lets the rest pass by."""

    def __init__(self) -> None:
        super().__init__()
        self.expert, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[:, :1] > 0
        taken = chosen & (chosen.cumsum(0) <= 4)
        return self.head(torch.where(taken, self.expert(x), x))  # type: ignore[no-any-return]


class Skipping(nn.Module):
    """Skips a layer by a draw, on which control flow depends, and sorts its batch: vmap takes it in evaluation only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        x = x[order][order.argsort()]
        return self.head(self.layer(x) if not self.training or torch.rand(()) < 0.5 else x)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.*example by example")
def test_what_shows_only_in_larger_batches_or_in_training_shows_before_anything_is_charged() -> None:
    ledger = Ledger(5.0, 1e-4)
    with pytest.raises(ExamplesMixError):
        loop(Crowded(), ledger=ledger, physical_batch=None)
    assert not ledger.entries
    private = loop(Skipping())
    for x, y in private.batches(3):
        private.step(x, y)


class Together(nn.Module):
    """Mixes more than 8192 examples, and notes how many it has seen at once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.most = nn.Linear(6, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.most = max(self.most, len(x))
        return self.inner(x - x.mean(0) if len(x) > 8192 else x)  # type: ignore[no-any-return]


def test_no_more_examples_meet_than_were_checked_before_the_charge() -> None:
    model, data = Together(), TensorDataset(torch.rand(20000, 6), torch.zeros(20000, dtype=torch.int64))
    private = loop(model, data, expected_batch_size=10000, physical_batch=20000, target_delta=1e-6)
    for x, y in private.batches(2):
        assert len(y) > 8192
        private.step(x, y)
    assert model.most == 8192


class Quoting(nn.Module):
    """In evaluation mode it quotes a private value."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and bool((x < 0).any()):
            raise ValueError(f"{float(x.min())} is below zero")
        return self.inner(x)  # type: ignore[no-any-return]


def test_a_forgotten_mode_is_refused_without_a_look_at_a_batch() -> None:
    model = Quoting()
    private = loop(model)
    model.eval()
    with pytest.raises(ValueError, match="mode, have changed since they were checked") as refused:
        next(private.batches())
    assert "below zero" not in str(refused.value)
    assert not private.drawn
    assert not private.epsilon()


def test_schedulers_dropout_views_and_the_adaptive_clip() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.1)

    def jittered(rows: Tensor, generator: np.random.Generator) -> Tensor:
        return rows[:, None] + torch.from_numpy(generator.normal(size=(len(rows), 3, 6))).float()

    private = loop(model, optimizer=optimizer, augment=jittered, views=3, quantile_clip=QuantileClip(4.0))
    assert 4.99 < cost(private.plan.event, 1e-4).epsilon <= 5
    clips = []
    for x, y in private.batches():
        private.step(x, y)
        scheduler.step()
        clips.append(private.l2_clip)
    assert len(set(clips)) == 20
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-5)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 79), max_size=12), st.booleans())
def test_rows_are_the_datasets_whatever_was_drawn(indices: list[int], plain: bool) -> None:
    x, y = as_records(DATA if plain else Items()).batch(np.array(indices, dtype=np.int64))
    assert torch.equal(x, DATA.tensors[0][indices])
    assert torch.equal(y, DATA.tensors[1][indices])
    assert (x.shape, x.dtype, y.dtype) == ((len(indices), 6), torch.float32, torch.int64)


def test_datasets_that_cannot_be_drawn_from_are_refused_in_one_line() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    with pytest.raises(ValueError, match="map-style"):
        loop(dataset=Endless())
    with pytest.raises(ValueError, match="is empty"):
        loop(dataset=TensorDataset(torch.zeros(0, 6), torch.zeros(0)))
    with pytest.raises(ValueError, match="pair"):
        loop(dataset=TensorDataset(torch.zeros(80, 6)))
    with pytest.raises(ValueError, match="one row for each item"):
        loop(collate_fn=lambda items: (torch.zeros(2 * len(items), 6), torch.zeros(2 * len(items)).long()))
    with pytest.raises(ValueError, match="reduction='none'"):
        loop(loss=nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match="whole number from 1 to n=80"):
        loop(expected_batch_size=81)


def test_importing_sordino_is_light_and_unknown_names_are_errors() -> None:
    program = (
        "import sys, sordino; assert 'torch' not in sys.modules; sordino.make_private; assert 'torch' in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    with pytest.raises(AttributeError, match="No sordino attribute make_public"):
        sordino.make_public  # noqa: B018


def test_an_exact_loop_wants_double_precision_and_trains_in_it() -> None:
    ledger = Ledger(5.0, 1e-4)
    with pytest.raises(ValueError, match=r"needs sums in double precision, and 0.weight is not"):
        loop(exact=True, ledger=ledger)
    assert ledger.entries == ()
    data = TensorDataset(DATA.tensors[0].double(), DATA.tensors[1])
    frozen = network().double()
    frozen.register_buffer("unused", torch.zeros(2))
    with pytest.raises(ValueError, match=r"and unused is not"):
        loop(frozen, data, exact=True, ledger=ledger)
    with pytest.raises(ValueError, match=r"in the model or its loss `float` gives float32"):
        loop(network().double(), data, loss=lambda o, t: LOSS(o.float(), t), exact=True, ledger=ledger)
    assert ledger.entries == ()
    private = loop(network().double(), data, exact=True)
    for x, y in private.batches():
        private.step(x, y)
    assert private.plan.exact
    assert 4.99 < private.epsilon() <= 5


# In a run folder


class Killed(Exception):  # noqa: N818
    """Stands for a process that ends at once."""


def trained_in(run: Path, stop_after: int | None = None, disturb: int | None = None, **changes: Any) -> nn.Module:
    """The program of a user: run again, it resumes."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    private = loop(model, optimizer=optimizer, schedulers=[scheduler], run=run, epochs=4, **changes)
    try:
        for x, y in private.batches():
            if disturb == private.drawn:
                model[0].weight.data.add_(1.0)  # type: ignore[index]
            private.step(x, y)
            scheduler.step()
            if stop_after == private.drawn:
                raise Killed
    finally:
        private.close()
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("dataset", [DATA, Items(), torch.utils.data.DataLoader(DATA, 8, shuffle=True)])
def test_a_killed_loop_ends_in_the_same_weights_and_pays_once(tmp_path: Path, dataset: Any) -> None:
    whole = trained_in(tmp_path / "whole", dataset=dataset, seed=1)
    for stop in (1, 7, 12, 38):
        with pytest.raises(Killed):
            trained_in(tmp_path / "broken", stop, dataset=dataset, seed=1)
    assert same(trained_in(tmp_path / "broken", dataset=dataset, seed=1), whole)
    entries = [Ledger.open(tmp_path / name / "ledger.json").entries for name in ("whole", "broken")]
    assert [[entry.count for entry in each] for each in entries] == [[40], [40]]
    assert not (tmp_path / "broken" / "private" / "key.json").exists()
    assert not (tmp_path / "broken" / "private" / "steps.log").exists()
    assert same(trained_in(tmp_path / "broken", dataset=dataset, seed=1), whole)  # finished: loaded, nothing drawn


def test_a_secret_key_is_resumed_too_and_other_data_or_plans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained_in(tmp_path / "run", 5)
    with pytest.raises(RunError, match="other data"):
        trained_in(tmp_path / "run", dataset=TensorDataset(DATA.tensors[0] + 1, DATA.tensors[1]))
    with pytest.raises(RunError, match="started with l2_clip="):
        trained_in(tmp_path / "run", l2_clip=0.7)
    trained_in(tmp_path / "run")
    assert Ledger.open(tmp_path / "run" / "ledger.json").entries[0].count == 40


def test_a_program_that_does_something_else_gets_no_noise_twice_and_does_not_lose_its_run(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained_in(tmp_path / "run", 6)
    with pytest.raises(LoopError, match="sums other gradients"):
        trained_in(tmp_path / "run", disturb=6)
    trained_in(tmp_path / "run")
    _, facts = Run(tmp_path / "run").read_tensors(tmp_path / "run" / "model.safetensors")
    assert facts["charged"] == 40
    assert facts["steps"] == 38  # a block of two was charged and lost


def test_milestones_are_kept_and_another_number_of_schedulers_is_refused(tmp_path: Path) -> None:
    def rates(run: Path, stop_after: int | None = None, count: int = 1) -> list[float]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        schedulers = [torch.optim.lr_scheduler.MultiStepLR(optimizer, [6, 12]) for _ in range(2)]
        private, seen = loop(model, optimizer=optimizer, schedulers=schedulers[:count], run=run), []
        try:
            for x, y in private.batches():
                seen.append(optimizer.param_groups[0]["lr"])
                private.step(x, y)
                schedulers[0].step()
                if stop_after == private.drawn:
                    break
        finally:
            private.close()
        return seen

    whole = rates(tmp_path / "whole")
    assert len(set(whole)) == 3
    rates(tmp_path / "broken", 4)
    for count in (0, 2):
        with pytest.raises(RunError, match=f"was started with 1 schedulers, not {count}"):
            rates(tmp_path / "broken", count=count)
    assert rates(tmp_path / "broken") == whole[3:]  # the last block of one is repeated


def test_a_scheduler_that_cannot_be_kept_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    scheduler.note = {1, 2}  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="the state of StepLR cannot be kept in a checkpoint: it holds a set"):
        loop(model, optimizer=optimizer, schedulers=[scheduler], run=tmp_path / "run")
    assert not (tmp_path / "run" / "ledger.json").exists()


def test_a_kill_between_the_model_and_the_end_leaves_no_key_and_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*paths: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Key, "end", killed)
        with pytest.raises(Killed):
            trained_in(tmp_path)
    hidden = [tmp_path / "private" / "key.json", tmp_path / "private" / "steps.log", Run(tmp_path).checkpoint]
    assert all(path.exists() for path in hidden)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    private = loop(model, optimizer=optimizer, run=tmp_path, epochs=4)
    assert not any(path.exists() for path in hidden)
    assert list(private.batches()) == []
    with Run(tmp_path).alone():  # although the loop is still there
        pass


def test_a_diverged_run_leaves_no_log_of_its_steps(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained_in(tmp_path, 5)
    (tmp_path / "diverged.json").write_text("{}")
    assert (tmp_path / "private" / "steps.log").exists()
    with pytest.raises(Diverged):
        trained_in(tmp_path)
    assert not (tmp_path / "private" / "steps.log").exists()


def test_a_closed_loop_says_so(tmp_path: Path) -> None:
    for run, what in ((None, "starts and charges a new training"), (tmp_path, "resumes its run")):
        private = loop(run=run)
        private.step(*next(private.batches()))
        private.close()
        with pytest.raises(LoopError, match=f"the loop is closed: call make_private again, which {what}"):
            list(private.batches())


class Jittered(Items):
    """With a random transform, as torchvision's."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(index)
        return x + torch.randn(6), y


def test_a_dataset_with_random_transforms_is_resumed_and_draws_the_same_again(tmp_path: Path) -> None:
    whole = trained_in(tmp_path / "whole", dataset=Jittered(), seed=1)
    with pytest.raises(Killed):
        trained_in(tmp_path / "broken", 5, dataset=Jittered(), seed=1)
    torch.manual_seed(7)
    assert same(trained_in(tmp_path / "broken", dataset=Jittered(), seed=1), whole)


class Scaled:
    """A loss that reads a setting from elsewhere."""

    factor = 1.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.factor * LOSS(output, target)


# Of gradients that are all clipped, twice the loss gives the same sums: the count of a quantile clip shows it.
@pytest.mark.parametrize("changes", [{"l2_clip": 100.0}, {"l2_clip": 1e-3, "quantile_clip": QuantileClip(4.0)}])
def test_another_loss_is_noticed_before_the_first_repeated_release(tmp_path: Path, changes: dict[str, Any]) -> None:
    loss = Scaled()
    with pytest.raises(Killed):
        trained_in(tmp_path, 5, loss=loss, **changes)
    loss.factor = 2.0
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    private = loop(model, optimizer=optimizer, schedulers=[scheduler], run=tmp_path, epochs=4, loss=loss, **changes)
    before = copy.deepcopy(model)
    x, y = next(private.batches())
    with pytest.raises(LoopError, match="step 4 sums other gradients") as refused:
        private.step(x, y)
    assert "\n" not in str(refused.value)
    assert same(model, before)
    with pytest.raises(LoopError, match="the loop is closed"):
        list(private.batches())


def test_a_loader_lends_its_batch_size() -> None:
    private = loop(dataset=torch.utils.data.DataLoader(DATA, 16), expected_batch_size=None)
    assert private.plan.sampler.expected_batch_size == 16
    with pytest.raises(ValueError, match="give expected_batch_size"):
        loop(expected_batch_size=None)
