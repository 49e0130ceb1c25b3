"""Mixing that shows only in larger batches is found before training; what depends on no example is let be."""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.gradients import ClippedGradients, ExamplesMixError, mixing
from sordino.gradients.batches import Setup

from .reference import close, gradients, squared_error

SLOW = pytest.mark.filterwarnings("ignore:.*example by example")


class Experts(nn.Module):
    """A mixture of experts, each of which takes max(least, factor·batch/experts) examples; the rest pass by."""

    def __init__(self, least: int = 4, factor: float = 1.0, experts: int = 4) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, experts), nn.ModuleList(nn.Linear(6, 6) for _ in range(experts))
        self.head, self._least, self._factor = nn.Linear(6, 2), least, factor

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.gate(x), 1)
        chosen = nn.functional.one_hot(weights.argmax(1), len(self.experts)).to(x.dtype)
        capacity = max(self._least, int(self._factor * len(x) / len(self.experts)))
        kept = chosen * (chosen.cumsum(0) <= capacity)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return self.head(x + (outputs * (kept * weights)[:, :, None]).sum(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("examples", [1, 5, 64])
@pytest.mark.parametrize(("least", "factor"), [(4, 1.0), (4, 2.0), (20, 0.1)])
def test_experts_of_a_limited_capacity_are_refused(examples: int, least: int, factor: float) -> None:
    torch.manual_seed(0)
    model, x, y = Experts(least, factor), torch.randn(examples, 6), torch.randn(examples, 2)
    mixing.refuse_mixing(Setup(model, squared_error, dict(model.named_parameters()), 1), x, y)  # three tell nothing
    with pytest.raises(ExamplesMixError, match=r"layer head|model or its loss"):
        ClippedGradients(model, squared_error, physical_batch=64).prepare(x, y)


class Beyond(nn.Module):
    """Mixes batches of more than a few examples, by a function of the batch."""

    def __init__(self, mix: Callable[[Tensor], Tensor], least: int) -> None:
        super().__init__()
        self.layer, self._mix, self._least = nn.Linear(6, 2), mix, least

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self._mix(x) if len(x) >= self._least else x)  # type: ignore[no-any-return]


def pairs(x: Tensor) -> Tensor:
    return x[: len(x) // 2 * 2].unflatten(0, (-1, 2)).flip(1).flatten(0, 1).repeat(2, 1)[: len(x)]


@SLOW
@pytest.mark.parametrize("least", [4, 30, 64])
@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x.mean(0),
        lambda x: 0.01 * x.roll(1, 0),
        lambda x: x.flip(0),
        lambda x: torch.cat([x[-1:], torch.zeros_like(x[1:])]),
        lambda x: torch.cat([torch.zeros_like(x[:17]), x[18:19], torch.zeros_like(x[18:])])[: len(x)],
        pairs,
    ],
)
def test_whatever_mixes_a_full_physical_batch_is_refused(mix: Any, least: int) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 6), torch.randn(64, 2)
    with pytest.raises(ExamplesMixError):
        ClippedGradients(Beyond(mix, least), squared_error, physical_batch=64).prepare(x, y)


@SLOW
@pytest.mark.parametrize("backwards", [False, True])
def test_a_limit_that_only_a_crowd_exceeds_is_seen(backwards: bool) -> None:
    """Half of the batch of one kind, and its share of the rest, stay within it."""

    def limited(x: Tensor) -> Tensor:
        kinds = (x @ torch.linspace(-1, 1, 6)[:, None]).sign()
        own = (kinds.flip(0) if backwards else kinds) > 0
        taken = own & (own.cumsum(0) <= 0.9 * len(x))
        return (taken.flip(0) if backwards else taken) * x

    torch.manual_seed(0)
    x, y = torch.randn(64, 6), torch.randn(64, 2)
    x[0] = x[-1] = torch.linspace(-1, 1, 6)  # of the kind that has a limit
    with pytest.raises(ExamplesMixError):
        ClippedGradients(Beyond(limited, 64), squared_error, physical_batch=64).prepare(x, y)


def test_a_larger_batch_than_any_before_is_looked_at_first() -> None:
    torch.manual_seed(0)
    model, x, y = Beyond(lambda x: x.mean(0), 150), torch.randn(200, 6), torch.randn(200, 2)
    clipped = ClippedGradients(model, squared_error, physical_batch=1000)
    clipped(x[:5], y[:5])
    with pytest.raises(ExamplesMixError):
        clipped(x, y)
    ClippedGradients(model, squared_error, physical_batch=100)(x, y)  # never so many at once


def test_mixing_in_bulk_is_seen_with_views_and_broken_examples() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 3, 6), torch.randn(40, 2)
    x[7] = torch.nan
    for mix, refused in ((lambda x: x.flip(0), True), (torch.zeros_like, False)):
        clipped = ClippedGradients(Beyond(mix, 20), squared_error, views=3, physical_batch=40)
        if refused:
            with pytest.raises(ExamplesMixError):
                clipped(x, y)
        else:
            assert int(torch.isfinite(clipped(x, y).norms).sum()) == 39


class Counter(nn.Module):
    """Counts the batches that pass, in place or by a new tensor."""

    def __init__(self, assign: bool) -> None:
        super().__init__()
        self.register_buffer("passed", torch.zeros((), dtype=torch.int64))
        self._assign = assign

    def forward(self, x: Tensor) -> Tensor:
        if self._assign:
            self.passed = self.passed + 1
        else:
            self.passed += 1
        return x


@pytest.mark.parametrize("assign", [True, False])
def test_a_counter_counts_calls_whatever_is_in_them(assign: bool) -> None:
    """Not physical batches, nor what was done over: how many there are depends on the examples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), Counter(assign), nn.Linear(3, 2))
    x, y = torch.randn(12, 4), torch.randn(12, 2)
    clipped = ClippedGradients(model, squared_error, 0.5, physical_batch=5)
    clipped.prepare(x, y)
    assert int(model[1].passed) == 0
    close(clipped(x, y), gradients(model.eval(), squared_error, x, y, 12), 0.5, 1e-5)
    counts = [int(model[1].passed)]
    broken = x.clone()
    broken[3] = torch.nan
    for batch in (x[:1], x[:0], broken):
        clipped(batch, y[: len(batch)])
        counts.append(int(model[1].passed))
    assert [after - before for before, after in pairwise(counts)] == [1, 1, 1]


@SLOW
@pytest.mark.parametrize("norm", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_spectral_norms_in_training_mode(norm: Any) -> None:
    """What they keep depends on the weights alone: sums are those of examples alone, and it moves on once a call."""
    torch.manual_seed(0)
    model = nn.Sequential(norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 2)).double()
    x, y = torch.randn(7, 4).double(), torch.randn(7, 2).double()
    before = {name: value.clone() for name, value in model.named_buffers()}
    each = []
    for place in range(7):
        for name, value in model.named_buffers():
            value.data.copy_(before[name])
        each += gradients(model, squared_error, x[place : place + 1], y[place : place + 1], 1)
    after = {name: value.clone() for name, value in model.named_buffers()}
    for name, value in model.named_buffers():
        value.data.copy_(before[name])
    found = ClippedGradients(model, squared_error, 0.5, physical_batch=3)(x, y)
    close(found, each, 0.5, 1e-9)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    for name, value in model.named_buffers():
        torch.testing.assert_close(value, after[name])
    assert all(type(value) is Tensor for value in model.buffers())


class Masked(nn.Module):
    """Hides parts of its input, drawn from NumPy's or Python's generator, as SpecAugment does."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layer, self._draw = nn.Linear(6, 2), draw

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x * torch.tensor([[self._draw() for _ in range(6)] for _ in x]).round().to(x)
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("draw", [np.random.random, random.random])
def test_chances_from_numpy_and_python_are_not_taken_for_mixing(draw: Any) -> None:
    torch.manual_seed(0)
    states = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index, union-attr]
    model, x, y = Masked(draw), torch.randn(9, 6), torch.randn(9, 2)
    clipped = ClippedGradients(model, squared_error, 0.5)
    clipped.prepare(x, y)
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == states  # type: ignore[index, union-attr]
    assert clipped.choices is not None
    assert clipped.choices.strategy == "rules"
    assert not torch.equal(clipped(x, y).norms, clipped(x, y).norms)
