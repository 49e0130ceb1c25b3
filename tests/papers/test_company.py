"""Public images for batch norm come from the papers' public datasets, described as the private ones are."""

import pytest
import torch

from sordino import models
from sordino.data import load
from sordino.features import Pixels
from sordino.papers.weight_distributions.company import company


@pytest.mark.parametrize(("dataset", "shape"), [("mnist", (30, 1, 28, 28)), ("cifar-10", (30, 3, 32, 32))])
def test_thirty_images_of_the_same_shape(dataset: str, shape: tuple[int, ...]) -> None:
    found = company(dataset, Pixels())
    assert found.shape == shape
    assert 0.05 < float(found.std()) < 1
    assert len(found.flatten(1).unique(dim=0)) == 30


def test_they_serve_a_network() -> None:
    torch.manual_seed(0)
    model = models.AmongPublic(lambda norm: models.lenet5(norm=norm), company("mnist", Pixels(), 3))
    with torch.no_grad():
        assert model(Pixels()(load("mnist").test.x[:5])).shape == (5, 10)


def test_bad_input_is_told() -> None:
    with pytest.raises(ValueError, match="no public images beside adult"):
        company("adult", Pixels())
    with pytest.raises(ValueError, match=r"public images can be taken, not 0"):
        company("mnist", Pixels(), 0)
