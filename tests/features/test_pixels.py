"""The central pixels of an image are those in its middle, and no others."""

import pytest
import torch

from sordino.features.pixels import Central


def test_the_middle_is_cut_out() -> None:
    planes = torch.arange(2 * 3 * 6 * 8).reshape(2, 3, 6, 8).float()
    assert torch.equal(Central(4)(planes), planes[:, :, 1:5, 2:6])
    assert torch.equal(Central(6)(planes), planes[..., 1:7])


@pytest.mark.parametrize("side", [0, 7])
def test_more_than_there_is_cannot_be_cut_out(side: int) -> None:
    with pytest.raises(ValueError, match="have no central"):
        Central(side)(torch.zeros(1, 1, 6, 8))
