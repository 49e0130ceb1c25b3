"""Before anything is charged a model is tried on made-up rows: its verdict is the same whatever the records are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino
from sordino.data import ArrayRecords
from sordino.gradients import ExamplesMixError
from sordino.training.modules import TrainableModule

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
    """Takes no example of length 0, as packed sequences do not, or of a greater least length."""

    def __init__(self, least: int = 1) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        if not bool((length >= self.least).all()):
            raise ValueError(f"lengths must be above {self.least - 1}")
        return self.inner(x) / length[:, None]


class Trimmed(Around):
    """Cuts a batch to its longest sequence, then averages over all that is left."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        assert bool((length >= self.least).all())
        return self.inner(x[:, : max(1, int(length.max()))].mean(1))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Tokens in one of several experts, which take so many times an equal share of a batch."""

    def __init__(self, experts: int, share: float) -> None:
        super().__init__()
        self.table, self.gate, self.out = nn.Embedding(64, 8), nn.Linear(8, experts, bias=False), nn.Linear(8, 3)
        self.experts, self.share = nn.ModuleList(nn.Linear(8, 8) for _ in range(experts)), share

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids).mean(1)
        chosen, sums = self.gate(x).argmax(1), torch.zeros_like(x)
        most = max(4, int(self.share * len(x) / len(self.experts)))
        for number, expert in enumerate(self.experts):
            own = chosen == number
            sums = torch.where((own & (own.cumsum(0) <= most))[:, None], expert(x), sums)
        return self.out(x + sums)  # type: ignore[no-any-return]


class Rare(Around):
    """Mixes examples if any of them has a large number."""

    def forward(self, x: Tensor) -> Tensor:
        x = x / 1000
        return self.inner(x - x.mean(0) if bool((x > 1).any()) else x)  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """Of a table whose size is no power of two, beside a mask and lengths; notes what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(1000, 4), nn.Linear(4, 3)
        self.seen: set[int] = set()

    def forward(self, ids: Tensor, mask: Tensor, length: Tensor) -> Tensor:
        found = self.table(ids)
        self.seen.update(ids.flatten().tolist())
        within = mask & (torch.arange(ids.shape[1]) < length[:, None])
        return self.out((found * within[..., None]).mean(1))  # type: ignore[no-any-return]


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
    records = ArrayRecords(x, y)
    TrainableModule(lambda: model, LOSS).choose(records, None, 8)


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
    x, y = {"x": torch.randn(20, 3), "length": torch.arange(3, 23)}, torch.zeros(20, dtype=torch.int64)
    with pytest.warns(UserWarning, match="checked on the first private ones"):
        tried(Lengths(3), x, y)
    with pytest.raises(ValueError, match="above 2") as refused:
        tried(Lengths(3), x | {"length": torch.zeros(20, dtype=torch.int64)}, y)
    assert "private" in refused.value.__notes__[0]


@both
def test_lengths_from_one_are_made_up(tried: Try) -> None:
    x, y = {"x": torch.randn(20, 3), "length": torch.zeros(20, dtype=torch.int64)}, torch.zeros(20, dtype=torch.int64)
    tried(Lengths(), x, y)


@both
@pytest.mark.parametrize("least", [0, 1])
def test_a_batch_cut_to_its_longest_sequence_is_refused(tried: Try, least: int) -> None:
    x = {"x": torch.ones(40, 16, 3), "length": torch.full((40,), 4)}
    with pytest.raises(ExamplesMixError):
        tried(Trimmed(least), x, torch.zeros(40, dtype=torch.int64))


@pytest.mark.filterwarnings("ignore:the loss does not depend on 1")  # the gate picks, and learns nothing
@both
@pytest.mark.parametrize(("experts", "share"), [(2, 1.25), (4, 1.25), (4, 3.0)])
@pytest.mark.parametrize("seed", [0, 2])
def test_experts_of_tokens_with_a_limit_are_refused(tried: Try, experts: int, share: float, seed: int) -> None:
    torch.manual_seed(seed)
    with pytest.raises(ExamplesMixError):
        tried(Experts(experts, share), torch.randint(2, 64, (256, 5)), torch.arange(256) % 3)


@both
@pytest.mark.parametrize("dtype", [torch.int16, torch.int64])
def test_one_large_number_among_small_ones_is_tried(tried: Try, dtype: torch.dtype) -> None:
    with pytest.raises(ExamplesMixError):
        tried(Rare(), torch.ones((20, 3), dtype=dtype), torch.zeros(20, dtype=torch.int64))


@both
def test_each_input_and_label_has_the_range_that_is_taken(tried: Try) -> None:
    model, mask = Tokens(), torch.ones((300, 16), dtype=torch.bool)
    x = {"ids": torch.zeros((300, 16), dtype=torch.int32), "mask": mask, "length": torch.zeros(300, dtype=torch.int64)}
    tried(model, x, torch.zeros(300, dtype=torch.int64))
    assert max(model.seen) == 999
    assert len(model.seen) > 100


def test_views_are_made_of_made_up_rows_too() -> None:
    def both_ways(rows: Tensor, generator: np.random.Generator) -> Tensor:
        assert not bool((rows == 77).all(1).any())
        return torch.stack([rows, -rows], 1)

    records = ArrayRecords(torch.full((20, 3), 77.0), torch.zeros(20, dtype=torch.int64))
    trainee = TrainableModule(lambda: nn.Linear(3, 2), LOSS, augment=both_ways, views=2)
    trainee.choose(records, None, 8)
