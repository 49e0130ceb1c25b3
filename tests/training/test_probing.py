"""Before anything is charged a model is tried on made-up rows: its verdict is the same whatever the records are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino
from sordino.gradients import ExamplesMixError
from sordino.training.module import ModuleTrainee

LOSS = nn.CrossEntropyLoss(reduction="none")
Data = tuple[Tensor | dict[str, Tensor], Tensor]


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)


class Marked(Around):
    """Refuses the mark of a private record."""

    def forward(self, x: Tensor) -> Tensor:
        assert not bool((x == 77).all(1).any())
        return self.inner(x.float())


class Averaged(Around):
    """Mixes examples, but does not show it where all of them are alike."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x - x.mean(0))


class Lengths(Around):
    """Takes no example of length 0, as packed sequences do not."""

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        if not bool((length > 0).all()):
            raise ValueError("lengths must be above 0")
        return self.inner(x) / length[:, None]


class Items(torch.utils.data.Dataset[Any]):
    def __init__(self, x: dict[str, Tensor], y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Any:
        return {name: value[index] for name, value in self.x.items()}, self.y[index]


def by_make_private(model: nn.Module, x: Any, y: Tensor) -> None:
    dataset = Items(x, y) if isinstance(x, dict) else TensorDataset(x, y)
    sordino.make_private(
        *(model, torch.optim.SGD(model.parameters(), 0.1), LOSS, dataset),
        **{"expected_batch_size": 8, "epochs": 1, "l2_clip": 1.0, "target_epsilon": 1.0, "target_delta": 1e-5},
    )


def by_choose(model: nn.Module, x: Any, y: Tensor) -> None:
    ModuleTrainee(lambda: model, LOSS, x, y).choose(None, 8)


Try = Callable[[nn.Module, Any, Tensor], None]
both = pytest.mark.parametrize("tried", [by_make_private, by_choose])


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_no_record_reaches_the_model_or_its_loss(tried: Try, dtype: torch.dtype) -> None:
    tried(Marked(), torch.full((20, 3), 77, dtype=dtype), torch.ones(20, dtype=torch.int64))


@both
@pytest.mark.parametrize("value", [0.0, 1e30, float("nan"), float("inf")])
def test_the_verdict_is_the_same_whatever_the_records_are(tried: Try, value: float) -> None:
    x, y = torch.full((20, 3), value), torch.zeros(20, dtype=torch.int64)
    tried(nn.Linear(3, 2), x, y)
    with pytest.raises(ExamplesMixError):
        tried(Averaged(), x, y)


@both
def test_what_does_not_take_made_up_rows_is_tried_on_private_ones_and_says_so(tried: Try) -> None:
    x, y = {"x": torch.randn(20, 3), "length": torch.arange(1, 21)}, torch.zeros(20, dtype=torch.int64)
    with pytest.warns(UserWarning, match="checked on the first private ones"):
        tried(Lengths(), x, y)
    with pytest.raises(ValueError, match="above 0") as refused:
        tried(Lengths(), x | {"length": torch.zeros(20, dtype=torch.int64)}, y)
    assert "private" in refused.value.__notes__[0]


def test_views_are_made_of_made_up_rows_too() -> None:
    def both_ways(rows: Tensor, generator: np.random.Generator) -> Tensor:
        assert not bool((rows == 77).all(1).any())
        return torch.stack([rows, -rows], 1)

    trainee = ModuleTrainee(
        lambda: nn.Linear(3, 2),
        LOSS,
        torch.full((20, 3), 77.0),
        torch.zeros(20, dtype=torch.int64),
        augment=both_ways,
        views=2,
    )
    trainee.choose(None, 8)
