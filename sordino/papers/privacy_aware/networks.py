"""PAW's networks by name: what each is trained on, how it is built, how it is measured."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from sordino import models
from sordino.papers.privacy_aware import inputs
from sordino.papers.privacy_aware.inputs import COMPONENTS, VOCABULARY, Inputs, Rows
from sordino.training import DenseTrainee, ModuleTrainee, Trainee, cross_entropy, softmax_slope, squared_slope

_BLOCK = 1000
GREY = 32 * 32
COMPLEX_FCN = (784, 1024, 512, 64, 10)
SIMPLE_FCN = (784, 512, 64, 10)
RWT = " RWT"
"""Ends the name of a network of which the last two dense layers alone are trained."""


@dataclass(frozen=True)
class Network:
    """A network with its dataset; one that ends in dense layers, all else of it fixed, has gradients in closed form."""

    dataset: str
    inputs: Inputs
    build: Callable[[], nn.Sequential]
    closed_form: bool = True
    regression: bool = False

    def trainee(self, x: Rows, y: Rows, place: tuple[int, int] = (0, 1)) -> Trainee:
        """With a closed form, in its place among trainings side by side."""
        if not self.closed_form:
            return ModuleTrainee(self.build, cross_entropy, x, y)
        return DenseTrainee(self.build, squared_slope if self.regression else softmax_slope, x, y, place=place)

    @torch.no_grad()
    def score(self, model: nn.Module, x: Rows, y: Rows) -> float:
        """The share of right answers; of a regression the mean absolute error."""
        blocks = [model(torch.from_numpy(x[start : start + _BLOCK])) for start in range(0, len(x), _BLOCK)]
        answers: Any = torch.cat(blocks)
        if self.regression:
            return float((answers[:, 0] - torch.from_numpy(y)).abs().mean())
        return float((answers.argmax(dim=1) == torch.from_numpy(y)).float().mean())

    @property
    def counts(self) -> tuple[int, int]:
        """All its parameters, as the paper counts them, and the trained ones."""
        weights = [
            weight for name, weight in self.build().named_parameters() if not name.endswith("bias_hh_l0")
        ]  # an LSTM's second bias is PyTorch's own
        return sum(w.numel() for w in weights), sum(w.numel() for w in weights if w.requires_grad)


def _fcn(dataset: str, seen: Inputs, *widths: int) -> Network:
    return Network(dataset, seen, partial(models.dense, *widths))


def _cnn(dataset: str, *shape: Any) -> Network:
    return Network(dataset, inputs.PLANES, partial(models.paw_cnn, *shape), closed_form=False)


def _rnn(hidden: int, units: int) -> Network:
    build = partial(models.paw_rnn, hidden, units, vocabulary=VOCABULARY)
    return Network("sms-spam", inputs.TOKENS, build, closed_form=False)


def _both(name: str, network: Network) -> dict[str, Network]:
    """Trained in full, and with random weights but for its last two layers."""
    last = Network(network.dataset, network.inputs, lambda: models.train_last(network.build()))
    return {name: network, f"{name}{RWT}": last}


def width_name(width: int) -> str:
    return f"SVHN FCN {width}"


def depth_name(depth: int) -> str:
    return f"SVHN FCN {depth}×128"


def regression_name(layers: int, units: int) -> str:
    return f"medical FCN {layers}×{units}"


def size_name(*hidden: int) -> str:
    return f"MNIST FCN {'-'.join(map(str, hidden))}"


SIZES = ((4,), (16,), (64,), (128,), (512,), (2048,), (2048, 256, 64))
"""Hidden layers of Figure 1, which PAW does not give; the last is the complex network of its Figure 6."""
WIDTHS, DEPTHS = (4, 32, 128, 512, 2048), (1, 2, 4, 8, 12)
LAYERS, UNITS = (2, 6, 12), (10, 30, 60, 120)
NETWORKS: dict[str, Network] = {
    "CIFAR-10 CNN STW": _cnn("cifar-10", 3, 32, (48, 96), 512),
    "CIFAR-10 CNN PAW": _cnn("cifar-10", 3, 32, (16, 32, 48), 512),
    "MNIST CNN STW": _cnn("mnist", 1, 28, (48, 96), 64),
    "MNIST CNN PAW": _cnn("mnist", 1, 28, (16, 32), 64),
    "MNIST LeNet-5": Network("mnist", inputs.PLANES, models.average_lenet5, closed_form=False),
    "SVHN CNN STW": _cnn("svhn", 1, 32, (48, 96), 512),
    "SVHN CNN PAW": _cnn("svhn", 1, 32, (16, 32), 512),
    "CIFAR-10 FCN STW": _fcn("cifar-10", inputs.PRINCIPAL, COMPONENTS, 2048, 10),
    "CIFAR-10 FCN PAW": _fcn("cifar-10", inputs.PRINCIPAL, COMPONENTS, 64, 10),
    "MNIST FCN STW": _fcn("mnist", inputs.POOLED, 64, 512, 64, 10),
    "MNIST FCN PAW": _fcn("mnist", inputs.POOLED, 64, 128, 10),
    "SVHN FCN STW": _fcn("svhn", inputs.PRINCIPAL, COMPONENTS, 512, 128, 10),
    "SVHN FCN PAW": _fcn("svhn", inputs.PRINCIPAL, COMPONENTS, 128, 10),
    "SVHN FCN STW, no PCA": _fcn("svhn", inputs.FLAT, GREY, 512, 128, 10),
    "SVHN FCN PAW, no PCA": _fcn("svhn", inputs.FLAT, GREY, 128, 10),
    "Fashion-MNIST FCN STW": _fcn("fashion-mnist", inputs.POOLED, 64, 512, 10),
    "Fashion-MNIST FCN PAW": _fcn("fashion-mnist", inputs.POOLED, 64, 128, 10),
    "Location-30 FCN STW": _fcn("location-30", inputs.BITS, 446, 1024, 256, 30),
    "Location-30 FCN PAW": _fcn("location-30", inputs.BITS, 446, 128, 30),
    "MNIST logistic": _fcn("mnist", inputs.POOLED, 64, 10),
    **_both("MNIST FCN complex", _fcn("mnist", inputs.FLAT, *COMPLEX_FCN)),
    "MNIST FCN simple": _fcn("mnist", inputs.FLAT, *SIMPLE_FCN),
    **_both("MNIST CNN of RWT", Network("mnist", inputs.PLANES, models.rwt_cnn, closed_form=False)),
    **_both("SMS RNN STW", _rnn(256, 512)),
    "SMS RNN PAW": _rnn(4, 16),
    **{size_name(*hidden): _fcn("mnist", inputs.POOLED, 64, *hidden, 10) for hidden in SIZES},
    **{width_name(width): _fcn("svhn", inputs.PRINCIPAL, COMPONENTS, width, 10) for width in WIDTHS},
    **{depth_name(depth): _fcn("svhn", inputs.PRINCIPAL, COMPONENTS, *[128] * depth, 10) for depth in DEPTHS},
    **{
        regression_name(layers, units): Network(
            "medical-cost",
            inputs.ATTRIBUTES,
            partial(models.dense, 6, *[units] * layers, 1),
            regression=True,
        )
        for layers in LAYERS
        for units in UNITS
    },
}
