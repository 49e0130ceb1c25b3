"""Per-example gradients through shared statistics, against one backward pass for each example."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sordino.data import ArrayRecords
from sordino.training.dpsgd import ClippedSum
from sordino.training.modules import MixingModule

GENERATOR = np.random.default_rng(3)
IMAGES, LABELS = GENERATOR.normal(size=(20, 1, 6, 6)).astype(np.float32), GENERATOR.integers(0, 3, 20)
LOSS = nn.CrossEntropyLoss(reduction="none")


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


def summed(rows: np.ndarray, clip: float, images: np.ndarray = IMAGES) -> ClippedSum:
    model = MixingModule(BesidePublic, LOSS)
    return model.clipped_sum(ArrayRecords(images, LABELS), rows, clip, np.random.default_rng(0))


@pytest.mark.parametrize("clip", [0.05, 0.5, 1e6])
def test_sums_are_those_of_one_backward_pass_an_example(clip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.training.modules._GRADIENTS_AT_ONCE", 1000)  # several pieces
    made, rows = MixingModule(BesidePublic, LOSS), np.array([1, 4, 5, 9, 17])
    found = summed(rows, clip)
    sums = {name: torch.zeros_like(value) for name, value in made.parameters.items()}
    for place in range(len(rows)):
        losses = functional.cross_entropy(
            made.model(torch.from_numpy(IMAGES[rows])), torch.from_numpy(LABELS[rows]), reduction="none"
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
    outlier = IMAGES.copy()
    outlier[0] = 1e3 * IMAGES[0]
    other = summed(rows, clip, outlier).sums
    assert torch.sqrt(sum((moved[name] - other[name]).square().sum() for name in moved)) > 3 * clip


def test_an_empty_batch_adds_nothing_and_so_does_what_is_not_finite() -> None:
    assert all(not bool(value.any()) for value in summed(np.arange(0), 1.0).sums.values())
    broken = IMAGES.copy()
    broken[0] = np.nan
    found = summed(np.arange(20), 1.0, broken)
    assert all(not bool(value.any()) for value in found.sums.values())  # it has spoilt everybody's


def test_running_statistics_are_refused() -> None:
    with pytest.raises(ValueError, match="layer 1 keeps running statistics"):
        MixingModule(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3)), LOSS)
