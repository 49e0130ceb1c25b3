"""Moved views: each of one image alone, every move as likely, and edges repeated."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sordino.gradients.mixing import ExamplesMixError
from sordino.training.augmentation import Augment, Shifts, Views

IMAGES = torch.arange(2 * 3 * 5 * 4).reshape(2, 3, 5, 4).float()


def _moved(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """By hand: the value at each place is that of the nearest place within the image."""
    rows = (torch.arange(image.shape[1]) + down).clamp(0, image.shape[1] - 1)
    columns = (torch.arange(image.shape[2]) + right).clamp(0, image.shape[2] - 1)
    return image[:, rows][:, :, columns]


@given(views=st.integers(1, 4), most=st.integers(0, 3), seed=st.integers(0, 2**32))
def test_every_view_is_a_move_of_its_own_image(views: int, most: int, seed: int) -> None:
    seen = Shifts(views, most)(IMAGES, np.random.default_rng(seed))
    assert seen.shape == (2, views, *IMAGES.shape[1:])
    reach = range(-most, most + 1)
    for image, its in zip(IMAGES, seen, strict=True):
        moves = [_moved(image, down, right) for down in reach for right in reach]
        assert all(any(torch.equal(view, move) for move in moves) for view in its)


def test_all_moves_are_as_likely() -> None:
    image = torch.zeros(1, 1, 3, 3)
    image[0, 0, 1, 1] = 1
    seen = Shifts(9000, 1)(image, np.random.default_rng(0))[0, :, 0]
    counts = seen.sum(dim=0).flatten()  # where the one bright pixel went
    assert counts.sum() == 9000
    assert (counts - 1000).abs().max() < 5 * np.sqrt(1000 * 8 / 9)


def test_no_images_have_no_views() -> None:
    assert Shifts(2, 1)(IMAGES[:0], np.random.default_rng(0)).shape == (0, 2, 3, 5, 4)


@pytest.mark.parametrize(("views", "most"), [(0, 1), (1, -1)])
def test_bad_numbers(views: int, most: int) -> None:
    with pytest.raises(ValueError, match="views are at least 1 and moves at least 0 pixels"):
        Shifts(views, most)


MIXING: dict[str, Augment] = {
    "centred": lambda rows, generator: (rows - rows.mean(0))[:, None],
    "paired with the next": lambda rows, generator: torch.stack([rows, rows.roll(1, 0)], 1),
}


@pytest.mark.parametrize("name", MIXING)
def test_views_of_several_examples_are_refused(name: str) -> None:
    with pytest.raises(ExamplesMixError, match="make each row's views of that row and those alone"):
        Views(MIXING[name], 1 if name == "centred" else 2).refuse_mixing(torch.randn(8, 1, 4, 4))


@pytest.mark.parametrize("examples", [8, 600])
def test_views_that_mix_larger_batches_only_are_refused(examples: int) -> None:
    def mixed(rows: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        return (rows + rows.flip(0) if len(rows) > 7 else rows)[:, None]

    with pytest.raises(ExamplesMixError):
        Views(mixed, 1).refuse_mixing(torch.randn(examples, 2))
    Views(Shifts(2, 1), 2).refuse_mixing(torch.randn(examples, 1, 3, 3))


def test_random_views_of_one_example_are_not() -> None:
    Views(Shifts(3, 1), 3).refuse_mixing(torch.randn(8, 1, 4, 4))
    Views(Shifts(1, 1), 1).refuse_mixing(torch.full((8, 1, 4, 4), torch.nan))
    Views(lambda rows, generator: (rows + torch.randn_like(rows))[:, None], 1).refuse_mixing(torch.randn(8, 1, 4, 4))
    Views(None, 1).refuse_mixing(torch.randn(8, 1, 4, 4))
    Views(MIXING["centred"], 1).refuse_mixing(torch.randn(2, 1, 4, 4))  # too few to tell
