"""Convolutional networks: T&B's (Tables 6–9, with the counts of the authors' code), LSR's, SI's and PAW's.

T&B pool after tanh. Tanh is monotone, so pooling before it is the same function, with a quarter of the tanh. SI's have
ReLU and may have a norm after each layer but the scores. PAW's (its Appendix D) have ReLU and not their dropout, whose
rate is 0.3 (Section IX-A).
"""

import re

from torch import nn

from sordino.models.fully_connected import dense, in_sequence
from sordino.models.groups import in_groups
from sordino.models.normalisation import Norm, no_norm

_VGG16_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""A multiple of the width, and the number of convolutions before each pooling."""


def mnist_cnn(classes: int = 10) -> nn.Sequential:
    """T&B Table 6: 26,010 parameters on 1×28×28 images."""
    return in_sequence(
        (nn.Conv2d(1, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        (nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        (nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, classes)),
    )


def mnist_scatter_cnn(classes: int = 10) -> nn.Sequential:
    """T&B Table 8 without its pooling, which the authors' code does not have: 33,066 parameters on 81×7×7 features."""
    return in_sequence(
        (nn.Conv2d(81, 16, 3, stride=2, padding=1), nn.Tanh()),
        (nn.Conv2d(16, 32, 3, padding=1), nn.Tanh()),
        (nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, classes)),
    )


def cifar_cnn(classes: int = 10) -> nn.Sequential:
    """T&B Table 7: 550,570 parameters on 3×32×32 images."""
    return in_sequence(
        (*_conv3(3, 32), *_pooled_conv3(32, 32)),
        (*_conv3(32, 64), *_pooled_conv3(64, 64)),
        (*_conv3(64, 128), *_pooled_conv3(128, 128)),
        (nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, classes)),
    )


def cifar_small_cnn(classes: int = 10) -> nn.Sequential:
    """T&B Table 20: half the filters of Table 7 and one convolution fewer, 167,642 parameters on 3×32×32 images."""
    return in_sequence(
        (*_conv3(3, 16), *_pooled_conv3(16, 16)),
        (*_conv3(16, 32), *_pooled_conv3(32, 32)),
        _pooled_conv3(32, 64),
        (nn.Flatten(), nn.Linear(1024, 128), nn.Tanh(), nn.Linear(128, classes)),
    )


def cifar_scatter_cnn(classes: int = 10) -> nn.Sequential:
    """T&B Table 9 without its second pooling, as in the authors' code: 187,210 parameters on 243×8×8 features."""
    return in_sequence(
        (*_pooled_conv3(243, 64), *_conv3(64, 64)),
        (nn.Flatten(), nn.Linear(1024, classes)),
    )


def lsr_cnn(classes: int = 10) -> nn.Sequential:
    """LSR's network for MNIST and Fashion-MNIST: 25,386 parameters on 1×28×28 images."""
    return in_sequence(
        (nn.Conv2d(1, 16, 5), nn.MaxPool2d(2), nn.Tanh()),
        (nn.Conv2d(16, 32, 4), nn.MaxPool2d(2), nn.Tanh()),
        (nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, classes)),
    )


def lsr_small_cnn(classes: int = 10) -> nn.Sequential:
    """The network of LSR's Figure 1 (and of Wu et al. 2020): 11,330 parameters on 1×28×28 images."""
    return in_sequence(
        (nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        (nn.Conv2d(10, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        (nn.Flatten(), nn.Linear(160, 50), nn.ReLU(), nn.Linear(50, classes)),
    )


def tf_tutorial_cnn(classes: int = 10, norm: Norm = no_norm, side: int = 24) -> nn.Sequential:
    """The CNN of TensorFlow's tutorial on CIFAR-10 in SI: 1,068,298 parameters on 3×24×24 images.

    SI names it without describing it. Taken is the tutorial's network, two 5×5 convolutions of 64 channels and dense
    layers of 384 and 192, on the central 24×24 pixels, as Abadi et al. (2016) cut them. Assumed is a 2×2 pooling in the
    place of the tutorial's overlapping 3×3 one, and no local response normalisation; `side` 32 takes whole images.
    """
    if side < 4 or side % 4:
        raise ValueError(f"the side of the images must be a multiple of 4, not {side}")
    return in_sequence(
        (nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), norm(64), nn.MaxPool2d(2)),
        (nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), norm(64), nn.MaxPool2d(2)),
        (nn.Flatten(), nn.Linear(64 * (side // 4) ** 2, 384), nn.ReLU(), norm(384)),
        (nn.Linear(384, 192), nn.ReLU(), norm(192), nn.Linear(192, classes)),
    )


def lenet5(classes: int = 10, norm: Norm = no_norm) -> nn.Sequential:
    """SI's LeNet-5 for MNIST: 61,706 parameters on 1×28×28 images; norms come before the pooling, as in its code."""
    return in_sequence(
        (nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), norm(6), nn.MaxPool2d(2)),
        (nn.Conv2d(6, 16, 5), nn.ReLU(), norm(16), nn.MaxPool2d(2)),
        (nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), norm(120)),
        (nn.Linear(120, 84), nn.ReLU(), norm(84), nn.Linear(84, classes)),
    )


def vgg16(
    classes: int = 10,
    norm: Norm = no_norm,
    last_norm: Norm | None = None,
    score_norm: Norm = no_norm,
    width: int = 64,
) -> nn.Sequential:
    """VGG-16 with one dense layer: 14,719,818 parameters on 3×32×32 images.

    SI's has a batch norm as `norm`, between convolution and ReLU; its "-mod" has no `last_norm`, and its "BN-" has a
    `score_norm` too. Thirteen convolutions, as the name says and as the authors' code has them; their Table 7 lists the
    sixteen of VGG-19.
    """
    layers: list[nn.Module] = []
    inputs = 3
    for stage, (times, count) in enumerate(_VGG16_STAGES):
        for place in range(count):
            last = (stage, place) == (len(_VGG16_STAGES) - 1, count - 1)
            outputs = width * times
            normalised = (last_norm or norm) if last else norm
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), normalised(outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, classes), score_norm(classes))


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


def simple_vgg(
    description: str = "32(2)-64(2)-128(2)-128", channels: int = 3, classes: int = 10, side: int = 32
) -> nn.Sequential:
    """INS's simpleVGG, written as in its Appendix H: blocks, each as channels(convolutions), and a dense layer's width.

    A max-pooling follows each block, activations are tanh. The default has 550,570 parameters on 3×32×32 images: it is
    `cifar_cnn`. Its groups are the blocks and the dense layer.

    >>> [name for name, _ in simple_vgg("simpleVGG-8(1)-16(2)-32").named_children()]
    ['group1', 'group2', 'group3', 'head']
    """
    *blocks, units = description.removeprefix("simpleVGG-").split("-")
    found = [re.fullmatch(r"([1-9]\d*)\(([1-9]\d*)\)", block) for block in blocks]
    if not blocks or None in found or not re.fullmatch(r"[1-9]\d*", units):
        raise ValueError(
            f"{description!r} describes no simpleVGG: write blocks as channels(convolutions) and then the width of the "
            "dense layer, such as 32(2)-64(2)-128"
        )
    if side >> len(blocks) < 1:
        raise ValueError(f"images of {side}×{side} cannot be halved {len(blocks)} times: take fewer blocks")
    groups, inputs = [], channels
    for block in found:
        outputs, count = (int(number) for number in block.groups()) if block else (0, 0)
        first = [_conv3(inputs if place == 0 else outputs, outputs) for place in range(count - 1)]
        groups.append(in_sequence(*first, _pooled_conv3(inputs if count == 1 else outputs, outputs)))
        inputs, side = outputs, side // 2
    last = nn.Sequential(nn.Flatten(), nn.Linear(inputs * side**2, int(units)), nn.Tanh())
    return in_groups([*groups, last], nn.Linear(int(units), classes))


def average_lenet5(classes: int = 10) -> nn.Sequential:
    """PAW's LeNet-5, with average pooling (Table XXV): 61,706 parameters on 1×28×28 images."""
    return in_sequence(
        (nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2)),
        (nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2)),
        dense(400, 120, 84, classes),
    )


def rwt_cnn(classes: int = 10) -> nn.Sequential:
    """The network of PAW's random weights training on MNIST (Table XXX): 122,442 parameters on 1×28×28 images.

    Frozen are its convolutions (19,328 parameters, which Table VI calls trainable); the dense layers have 103,114.
    """
    return in_sequence(
        (nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        dense(1600, 64, classes),
    )


def _pooled_conv3(inputs: int, outputs: int) -> tuple[nn.Conv2d, nn.MaxPool2d, nn.Tanh]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2), nn.Tanh()


def _conv3(inputs: int, outputs: int) -> tuple[nn.Conv2d, nn.Tanh]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.Tanh()
