"""The time that a training is said to take: no record is read for it, and it grows with the steps."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.data import ArrayRecords, PoissonSampler
from sordino.training import LinearClassifier, Plan, TrainableModule
from sordino.training.expected_time import expected_seconds, in_words, quicker_recipe

PLAN = Plan(PoissonSampler(2000, 1000), l2_clip=1.0, noise_multiplier=1.0, steps=10)


class Sealed:
    """Records of which none may be read."""

    def __len__(self) -> int:
        return 2000

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        assert len(indices) == 0
        return torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)

    def fingerprint(self, key: bytes) -> str:
        return "sealed"


def prepared(module: bool) -> Any:
    if not module:
        return LinearClassifier(4, 3)
    model = TrainableModule(nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="none"))
    x, y = torch.randn(2000, 4), torch.zeros(2000, dtype=torch.int64)
    model.choose(ArrayRecords(x, y), None, 1000)
    return model


@pytest.mark.parametrize("module", [False, True])
def test_it_is_measured_on_made_up_records_and_changes_nothing(module: bool) -> None:
    model = prepared(module)
    before = {name: value.clone() for name, value in model.weights().items()}
    state = torch.get_rng_state()
    seconds = expected_seconds(model, Sealed(), PLAN, 1000)
    assert 0 < seconds < 1000
    assert all(torch.equal(value, before[name]) for name, value in model.weights().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_quicker_recipe_is_named_where_the_records_have_one() -> None:
    found = quicker_recipe("cifar-10", "scatter-cnn")
    assert found is not None
    assert "--recipe scatter-linear" in found
    assert quicker_recipe("cifar-10", "scatter-linear") is None  # nothing is quicker
    assert quicker_recipe("my/images", "resnet18") is None
    assert in_words(1300) == "about 22 minutes"
