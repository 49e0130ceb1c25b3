"""Max pooling, channel by channel."""

import pytest
import torch

from sordino.features.pooling import MaxPool


def test_the_largest_of_each_square():
    images = torch.arange(40.0).reshape(1, 2, 4, 5)
    expected = torch.tensor([[[[6.0, 8], [16, 18]], [[26, 28], [36, 38]]]])
    assert torch.equal(MaxPool(2)(images), expected)


def test_what_cannot_be_pooled():
    with pytest.raises(ValueError, match="at least 3 pixels"):
        MaxPool(3)(torch.zeros(1, 1, 2, 5))
    with pytest.raises(ValueError, match="images"):
        MaxPool(2)(torch.zeros(4, 4))
    with pytest.raises(ValueError, match="at least 1"):
        MaxPool(0)
