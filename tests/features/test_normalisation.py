"""Normalisation by groups needs one example only; by statistics it does what the statistics say."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.features import IMAGENET_DEVIATION, IMAGENET_MEAN, Chain, GroupNorm, Pixels, Standardised


def test_groups_have_mean_zero_and_variance_one() -> None:
    batch = torch.randn(5, 12, 3, 3) * 4 + 7
    groups = GroupNorm(4)(batch).view(5, 4, -1)
    assert torch.allclose(groups.mean(2), torch.zeros(5, 4), atol=1e-5)
    assert torch.allclose(groups.var(2, unbiased=False), torch.ones(5, 4), atol=1e-3)
    with pytest.raises(ValueError, match="12 channels cannot be split into 5 groups"):
        GroupNorm(5)(batch)


def test_statistics_are_applied_and_small_variances_floored() -> None:
    scale = Standardised(mean=(1.0, 2.0), variance=(4.0, -1.0), floor=0.25)
    found = scale(torch.tensor([[[3.0], [2.5]]]))
    assert torch.allclose(found, torch.tensor([[[1.0], [1.0]]]), atol=1e-4)
    with pytest.raises(ValueError, match="2 channels, but the examples have 3"):
        scale(torch.zeros(1, 3, 2))
    with pytest.raises(ValueError, match="for each channel"):
        Standardised((0.0,), (1.0, 1.0))


def test_pixels_come_on_the_public_scale() -> None:
    grey = np.full((2, 4, 5), 255, np.uint8)
    assert Pixels()(grey).shape == (2, 1, 4, 5)
    assert float(Pixels()(grey).max()) == 1
    colour = Pixels(IMAGENET_MEAN, IMAGENET_DEVIATION)(np.zeros((2, 4, 5, 3), np.uint8))
    assert torch.allclose(colour[0, :, 0, 0], -torch.tensor(IMAGENET_MEAN) / torch.tensor(IMAGENET_DEVIATION))
    with pytest.raises(ValueError, match="expected uint8 images"):
        Pixels()(grey.astype(float))  # type: ignore[arg-type]


def test_a_chain_is_its_steps_one_after_the_other() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    chain = Pixels() >> (GroupNorm(3) >> GroupNorm(1))
    assert chain == Chain((Pixels(), GroupNorm(3), GroupNorm(1)))
    assert torch.equal(chain(images), GroupNorm(1)(GroupNorm(3)(Pixels()(images))))


@pytest.mark.parametrize("shape", [(1, 3), (457, 3), (457, 3, 2, 2), (200, 1, 5)])
def test_public_features_get_their_own_statistics(shape: tuple[int, ...]) -> None:
    features = np.random.default_rng(0).normal(3.0, 2.0, size=shape).astype(np.float32)
    scale, over = Standardised.of_public(features, floor=1e-3), (0, *range(2, len(shape)))
    exact = features.astype(np.float64)
    np.testing.assert_allclose(scale.mean, exact.mean(over), rtol=1e-12)
    np.testing.assert_allclose(scale.variance, exact.var(over), rtol=1e-10, atol=1e-15)
    assert scale.floor == 1e-3
    assert Standardised.of_public(torch.from_numpy(features).requires_grad_(), 1e-3) == scale
    if shape[0] > 1:
        found = scale(torch.from_numpy(features)).numpy()
        np.testing.assert_allclose(found.mean(over), 0, atol=1e-5)
        np.testing.assert_allclose(found.var(over), 1, atol=1e-4)


def test_public_statistics_survive_a_large_offset_and_narrow_types() -> None:
    spread = np.random.default_rng(1).normal(size=(1001, 2))
    np.testing.assert_allclose(Standardised.of_public(spread + 1e8).variance, spread.var(0), rtol=1e-6)
    halves = torch.full((300, 1, 4), 3.0, dtype=torch.bfloat16)
    assert Standardised.of_public(halves) == Standardised((3.0,), (0.0,))
    assert Standardised.of_public(np.full((900, 1), 6e4, np.float16)).variance == (0.0,)  # its square has no float16
    pixels = np.tile(np.array([0, 255], np.uint8), 500)[:, None]
    assert Standardised.of_public(pixels).variance == (pytest.approx(127.5**2),)


def test_public_features_may_stay_on_the_disk(tmp_path: Path) -> None:
    features = np.random.default_rng(2).normal(size=(450, 2, 3)).astype(np.float32)
    np.save(tmp_path / "public.npy", features)
    assert Standardised.of_public(np.load(tmp_path / "public.npy", mmap_mode="r")) == Standardised.of_public(features)


def test_public_features_that_have_no_statistics_are_refused() -> None:
    for shape in ((5,), (0, 3), (5, 0), (5, 3, 0)):
        with pytest.raises(ValueError, match="expected features"):
            Standardised.of_public(np.zeros(shape))
    features = np.zeros((450, 2))
    features[201, 1] = np.nan
    with pytest.raises(ValueError, match="rows 200 to 399"):
        Standardised.of_public(features)
