"""The convolutional and recurrent networks of PAW (its Appendix D), with ReLU and without their dropout.

Its rate is 0.3 in CNNs (Section IX-A) and not given for LSTMs; PAW's fully connected networks are `dense`.
"""

from typing import Any

from torch import Tensor, nn

from sordino.models.dense import dense


def paw_cnn(channels: int, side: int, filters: tuple[int, ...], units: int, classes: int = 10) -> nn.Sequential:
    """Basic blocks on pooled images: a 5×5 convolution, then 3×3 ones, each after a 2×2 max-pooling; two dense layers.

    PAW's counts: CIFAR-10 (3, 32, (48, 96), 512) 1,820,330 and (3, 32, (16, 32, 48), 512) 246,554; SVHN in grey
    (1, 32, (48, 96), 512) 1,817,930 and (1, 32, (16, 32), 512) 600,522; MNIST (1, 28, (48, 96), 64) 197,130 and
    (1, 28, (16, 32), 64) 56,970.
    """
    first, *others = filters
    layers: list[nn.Module] = [nn.MaxPool2d(2), nn.Conv2d(channels, first, 5), nn.ReLU()]
    inputs, side = first, side // 2 - 4
    for outputs in others:
        layers += [nn.MaxPool2d(2), nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        inputs, side = outputs, side // 2
    return nn.Sequential(*layers, *dense(inputs * side**2, units, classes))


def average_lenet5(classes: int = 10) -> nn.Sequential:
    """PAW's LeNet-5, with average pooling (Table XXV): 61,706 parameters on 1×28×28 images."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2)),
        *dense(400, 120, 84, classes),
    )


def rwt_cnn(classes: int = 10) -> nn.Sequential:
    """The network of PAW's random weights training on MNIST (Table XXX): 122,442 parameters on 1×28×28 images.

    Frozen are its convolutions (19,328 parameters, which Table VI calls trainable); the dense layers have 103,114.
    """
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *dense(1600, 64, classes),
    )


def paw_rnn(hidden: int, units: int, classes: int = 2, vocabulary: int = 1000, width: int = 50) -> nn.Sequential:
    """PAW's LSTM on token ids (B, length): (256, 512) has 496,978 trained parameters, (4, 16) 50,994."""
    return nn.Sequential(nn.Embedding(vocabulary, width), LastState(width, hidden), *dense(hidden, units, classes))


class LastState(nn.Module):
    """The last hidden state of an LSTM with one bias, as Keras has it.

    PyTorch adds two biases: the second would take as much noise and bring nothing, so it stays at zero.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        second: Any = self.lstm.bias_hh_l0
        nn.init.zeros_(second).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        _, (last, _) = self.lstm(x)
        hidden: Tensor = last[0]
        return hidden
