"""PAW's networks have the parameters that its tables say."""

import pytest

from sordino.papers.privacy_aware.comparing import TRAINED
from sordino.papers.privacy_aware.networks import NETWORKS, RWT, regression_name

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
    regression_name(6, 120): 73_561,
    regression_name(12, 60): 40_741,
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
    assert {network.dataset for network in NETWORKS.values()} == set(TRAINED)
