"""Clipped sums add up the numbers whose norms were taken, whatever torch may shorten elsewhere."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.gradients import ClippedGradients
from sordino.gradients.buffers import Buffers
from sordino.gradients.pieces import OuterSum, Whole
from sordino.gradients.precision import settings, unshortened
from sordino.mechanisms.streams import Streams
from sordino.training.dense import DenseTrainee, softmax_slope
from sordino.training.linear import LinearClassifier

_ALLOWED = ("none", "ieee")


@pytest.fixture
def shortening() -> Iterator[list[str]]:
    """Allowed where nothing here multiplies by it: on a GPU."""
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [place.fp32_precision for place in places]
    for place in places:
        place.fp32_precision = "tf32"
    yield settings()
    for place, value in zip(places, before, strict=True):
        place.fp32_precision = value


def test_nothing_is_shortened_inside_and_all_is_as_before_after(shortening: list[str]) -> None:
    assert "tf32" in shortening
    with unshortened():
        assert set(settings()) <= set(_ALLOWED)
    assert settings() == shortening


def test_settings_come_back_after_an_error(shortening: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), unshortened():
        1 / 0  # noqa: B018
    assert settings() == shortening


def test_nothing_is_shortened_while_another_thread_leaves(shortening: list[str]) -> None:
    """The one that came first goes first, and its settings must wait for the other."""
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with unshortened():
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    with unshortened():
        left.set()
        thread.join(10)
        assert set(settings()) <= set(_ALLOWED)
    assert settings() == shortening


def test_convolutions_on_a_gpu_are_shortened_unless_told_otherwise() -> None:
    """The reason for all this: torch's own default."""
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"


def _watched(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[list[str]]:
    seen: list[list[str]] = []
    true: Callable[..., Any] = getattr(owner, name)

    def noting(*args: Any, **more: Any) -> Any:
        seen.append(settings())
        return true(*args, **more)

    monkeypatch.setattr(owner, name, noting)
    return seen


@pytest.mark.parametrize("net", [nn.Linear(4, 3), nn.Sequential(nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3))])
def test_the_engine_sums_in_full(net: nn.Module, shortening: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sums = [_watched(monkeypatch, kind, "weighted_sum") for kind in (Whole, type(_outer()))]
    clipped = ClippedGradients(net, lambda scores, y: F.cross_entropy(scores, y, reduction="none"), physical_batch=8)
    x = torch.randn(8, 4) if isinstance(net, nn.Linear) else torch.randn(8, 1, 4)
    clipped.prepare(x, torch.arange(8) % 3)
    for each in sums:
        each.clear()
    clipped(x, torch.arange(8) % 3)
    found = [seen for each in sums for seen in each]
    assert found
    assert all(set(seen) <= set(_ALLOWED) for seen in found)
    assert settings() == shortening


def _outer() -> Any:
    return OuterSum(torch.ones(1, 1, 1), torch.ones(1, 1, 1), Buffers(), "w").measure("outer")


@pytest.mark.parametrize("kind", ["dense", "linear"])
def test_closed_forms_sum_in_full(kind: str, shortening: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.ones((6, 4), np.float32), np.arange(6) % 3
    trainee: Any = LinearClassifier(x, y, 3)
    if kind == "dense":
        trainee = DenseTrainee(lambda: nn.Sequential(nn.Linear(4, 3)), softmax_slope, x, y)
    trainee.initialise(Streams.fresh())
    products = _watched(monkeypatch, Tensor, "addmm_" if kind == "linear" else "__matmul__")
    trainee.clipped_sum(np.arange(6), 1.0)
    assert products
    assert all(set(seen) <= set(_ALLOWED) for seen in products)
    assert settings() == shortening
