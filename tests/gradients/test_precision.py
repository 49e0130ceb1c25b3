"""Norms and clipped sums are of the same numbers, whatever torch may shorten elsewhere."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.data import ArrayRecords
from sordino.gradients import ClippedGradients
from sordino.gradients.per_example_gradients import OuterProducts, WholeGradient
from sordino.gradients.precision import full_precision
from sordino.gradients.rules.convolution import _ConvolvedGradient
from sordino.mechanisms.streams import Streams
from sordino.runs import environment
from sordino.training.dense import DenseNetwork
from sordino.training.dense_sums import softmax_slope
from sordino.training.linear import LinearClassifier

_BACKENDS: Any = torch.backends
PLACES: dict[str, tuple[Any, str]] = {
    "products on a CPU": (_BACKENDS.mkldnn.matmul, "bf16"),
    "convolutions on a CPU": (_BACKENDS.mkldnn.conv, "bf16"),
    "recurrent layers on a CPU": (_BACKENDS.mkldnn.rnn, "bf16"),
    "products on a GPU": (_BACKENDS.cuda.matmul, "tf32"),
    "convolutions on a GPU": (_BACKENDS.cudnn.conv, "tf32"),
    "recurrent layers on a GPU": (_BACKENDS.cudnn.rnn, "tf32"),
}


def _now() -> dict[str, str]:
    return {name: place.fp32_precision for name, (place, _) in PLACES.items()}


def _in_full() -> bool:
    return set(_now().values()) <= {"none", "ieee"}


@pytest.fixture
def shortening() -> Iterator[dict[str, str]]:
    """All that torch can shorten is."""
    before = _now()
    for place, shortened in PLACES.values():
        place.fp32_precision = shortened
    yield _now()
    for name, (place, _) in PLACES.items():
        place.fp32_precision = before[name]


def test_nothing_is_shortened_inside_and_all_is_as_before_after(shortening: dict[str, str]) -> None:
    assert shortening == {name: shortened for name, (_, shortened) in PLACES.items()}
    assert sorted(environment()["precision"]) == sorted(shortening.values())
    with full_precision():
        assert _in_full()
    assert _now() == shortening


def test_settings_come_back_after_an_error(shortening: dict[str, str]) -> None:
    with pytest.raises(ZeroDivisionError), full_precision():
        1 / 0  # noqa: B018
    assert _now() == shortening


def test_nothing_is_shortened_while_another_thread_leaves(shortening: dict[str, str]) -> None:
    """The one that came first goes first, and its settings must wait for the other."""
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with full_precision():
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    with full_precision():
        left.set()
        thread.join(10)
        assert _in_full()
    assert _now() == shortening


def test_what_is_set_for_all_of_torch_can_be_changed_afterwards() -> None:
    before = _now()
    own = {name: place for name, (place, _) in PLACES.items() if "CPU" in name}
    try:
        for place in own.values():
            place.fp32_precision = "none"
        _BACKENDS.fp32_precision = "bf16"
        assert {place.fp32_precision for place in own.values()} == {"bf16"}
        with full_precision():
            assert {place.fp32_precision for place in own.values()} == {"ieee"}
        assert {place.fp32_precision for place in own.values()} == {"bf16"}
        _BACKENDS.fp32_precision = "ieee"
        assert {place.fp32_precision for place in own.values()} == {"ieee"}
    finally:
        _BACKENDS.fp32_precision = "none"
        for name, (place, _) in PLACES.items():
            place.fp32_precision = before[name]


def _watched(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[bool]:
    """Whether each call found everything in full."""
    seen: list[bool] = []
    true: Callable[..., Any] = getattr(owner, name)

    def noting(*args: Any, **more: Any) -> Any:
        seen.append(_in_full())
        return true(*args, **more)

    monkeypatch.setattr(owner, name, noting)
    return seen


_OUTER = type(OuterProducts(torch.ones(1, 1, 1), torch.ones(1, 1, 1)).measure("outer"))


@pytest.mark.parametrize(
    ("net", "kind"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(128, 3)), _OUTER),
        (nn.Sequential(nn.Conv1d(64, 2, 2), nn.Flatten(), nn.Linear(2, 3)), WholeGradient),
        (
            nn.Sequential(nn.Conv1d(64, 64, 1), nn.Flatten(), nn.Linear(128, 3)),
            _ConvolvedGradient,
        ),  # by its Gram matrices
    ],
)
def test_the_engine_measures_and_sums_in_full(
    net: nn.Module, kind: Any, shortening: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clipped = ClippedGradients(
        *(net, lambda scores, y: F.cross_entropy(scores, y, reduction="none")), l2_penalty=0.1, physical_batch=8
    )
    x, y = torch.randn(8, 64, 2), torch.arange(8) % 3
    clipped.prepare(x, y)  # which times the products, but shows none of them
    sums, products = (_watched(monkeypatch, kind, name) for name in ("weighted_sum", "inner"))
    clipped(x, y)
    assert sums
    assert products
    assert all(sums + products)
    assert _now() == shortening


@pytest.mark.parametrize("kind", ["dense", "linear"])
def test_closed_forms_sum_in_full(kind: str, shortening: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.ones((6, 4), np.float32), np.arange(6) % 3
    records = ArrayRecords(x, y)
    trainee: Any = LinearClassifier(x.shape[1], 3)
    if kind == "dense":
        trainee = DenseNetwork(lambda: nn.Sequential(nn.Linear(4, 3)), softmax_slope)
    trainee.initialise(Streams.fresh())
    products = _watched(monkeypatch, Tensor, "addmm_" if kind == "linear" else "__matmul__")
    trainee.clipped_sum(records, np.arange(6), 1.0)
    assert products
    assert all(products)
    assert _now() == shortening
