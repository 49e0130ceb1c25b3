"""PAW's networks have its parameter counts; inputs are functions of one record, and held-out records do not train."""

import numpy as np
import pytest

from sordino.papers.privacy_aware import networks
from sordino.papers.privacy_aware.networks import (
    CHARGES,
    LENGTH,
    NETWORKS,
    RWT,
    TRAINING_RECORDS,
    VOCABULARY,
    parts_of,
    principal_components,
)

COUNTS = {
    "CIFAR-10 CNN STW": 1_820_330,
    "CIFAR-10 CNN PAW": 246_554,
    "MNIST CNN STW": 197_130,
    "MNIST CNN PAW": 56_970,
    "MNIST LeNet-5": 61_706,
    "SVHN CNN STW": 1_817_930,
    "SVHN CNN PAW": 600_522,
    "CIFAR-10 FCN STW": 636_938,
    "CIFAR-10 FCN PAW": 19_914,
    "MNIST FCN STW": 66_762,
    "MNIST FCN PAW": 9610,
    "SVHN FCN STW": 221_066,
    "SVHN FCN PAW": 39_818,
    "Fashion-MNIST FCN STW": 38_410,
    "Fashion-MNIST FCN PAW": 9610,
    "MNIST FCN complex": 1_362_122,
    "MNIST FCN simple": 435_402,
    "SMS RNN STW": 496_978,
    "SMS RNN PAW": 50_994,
    "medical FCN 6×120": 73_561,
    "medical FCN 12×60": 40_741,
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_the_papers(name: str) -> None:
    assert NETWORKS[name].counts == (COUNTS[name], COUNTS[name])


@pytest.mark.parametrize(
    ("name", "whole", "trained"),
    [
        ("MNIST FCN complex", 1_362_122, 33_482),
        ("MNIST CNN of RWT", 122_442, 103_114),
        ("SMS RNN STW", 496_978, 132_610),
    ],
)
def test_random_weights_training_trains_the_last_two_layers_in_closed_form(name: str, whole: int, trained: int) -> None:
    network = NETWORKS[f"{name}{RWT}"]
    assert network.counts == (whole, trained)
    assert network.closed_form
    assert network.dataset == NETWORKS[name].dataset


def test_every_dataset_has_its_number_of_records() -> None:
    assert {network.dataset for network in NETWORKS.values()} == set(TRAINING_RECORDS)


def test_pooled_pixels_are_means_of_a_grid() -> None:
    images = np.zeros((2, 28, 28), np.uint8)
    images[0, :4, :4] = 255
    pooled, _ = networks.POOLED(images, images[:1])
    assert pooled.shape == (2, 64)
    assert pooled[0, 0] == pytest.approx(1)
    assert pooled[0, 10:].max() == 0 == pooled[1].max()


def test_words_get_the_same_id_in_any_message_and_stand_at_the_end() -> None:
    one, other = networks.TOKENS(np.array(["Free prize now", ""], object), np.array(["a free PRIZE! " * 40], object))
    assert one.shape == (2, LENGTH)
    assert other.shape == (1, LENGTH)
    assert not one[0, :-3].any()
    assert not one[1].any()
    assert one[0, -3] == other[0, 1]
    assert one[0, -2] == other[0, 2]
    assert 0 < other.min() <= other.max() < VOCABULARY


def test_attributes_are_six_numbers_and_charges_are_rescaled() -> None:
    found = parts_of("medical-cost", networks.ATTRIBUTES, 0, None, None)
    assert found.x.shape == (TRAINING_RECORDS["medical-cost"], 6)
    assert found.x.min() >= 0
    assert found.x.max() <= 1
    assert set(np.unique(found.x[:, 1])) == {0, 1}
    assert len(np.unique(found.x[:, 5])) == 4
    assert 0 < found.y.min() < found.y.max() <= 63_771 / CHARGES
    assert len(found.examined_y) == 300


def test_components_are_those_of_the_training_records() -> None:
    generator = np.random.default_rng(0)
    train = generator.normal(size=(50, 4)).astype(np.float32) * np.array([9, 3, 1, 0.1], np.float32)
    one, other = principal_components(train, train[:5] + 1, 2)
    values = np.linalg.eigvalsh(np.cov(train.T))[::-1][:2]
    np.testing.assert_allclose(one.var(axis=0, ddof=1), values, rtol=1e-3)
    assert other.shape == (5, 2)
    wide, _ = principal_components(train, train, 6)
    assert wide.shape == (50, 6)
    assert not wide[:, 4:].any()


def test_held_out_records_are_training_records_that_do_not_train() -> None:
    whole = parts_of("location-30", networks.BITS, 0, None, None)
    parts = parts_of("location-30", networks.BITS, 400, None, None)
    assert len(whole.y) == TRAINING_RECORDS["location-30"] == len(parts.y) + len(parts.examined_y)
    rows = np.concatenate([parts.x, parts.examined_x])
    assert np.array_equal(np.sort(rows.sum(axis=1)), np.sort(whole.x.sum(axis=1)))
    assert len(parts_of("location-30", networks.BITS, 0, 5000, 7).y) == 5000
