"""Small convolutional networks: those of T&B (Tables 6–9, with the counts of the authors' code) and LSR, and SI's.

The papers pool after tanh. Tanh is monotone, so pooling before it is the same function, with a quarter of the tanh.
"""

from torch import nn

from sordino.models.normalisation import Norm, no_norm


def mnist_cnn(classes: int = 10) -> nn.Sequential:
    """T&B Table 6: 26,010 parameters on 1×28×28 images."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, classes)),
    )


def mnist_scatter_cnn(classes: int = 10) -> nn.Sequential:
    """T&B Table 8 without its pooling, which the authors' code does not have: 33,066 parameters on 81×7×7 features."""
    return nn.Sequential(
        *(nn.Conv2d(81, 16, 3, stride=2, padding=1), nn.Tanh()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, classes)),
    )


def cifar_cnn(classes: int = 10) -> nn.Sequential:
    """T&B Table 7: 550,570 parameters on 3×32×32 images."""
    return nn.Sequential(
        *(*_conv3(3, 32), *_pooled_conv3(32, 32)),
        *(*_conv3(32, 64), *_pooled_conv3(64, 64)),
        *(*_conv3(64, 128), *_pooled_conv3(128, 128)),
        *(nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, classes)),
    )


def cifar_small_cnn(classes: int = 10) -> nn.Sequential:
    """T&B Table 20: half the filters of Table 7 and one convolution fewer, 167,642 parameters on 3×32×32 images."""
    return nn.Sequential(
        *(*_conv3(3, 16), *_pooled_conv3(16, 16)),
        *(*_conv3(16, 32), *_pooled_conv3(32, 32)),
        *_pooled_conv3(32, 64),
        *(nn.Flatten(), nn.Linear(1024, 128), nn.Tanh(), nn.Linear(128, classes)),
    )


def cifar_scatter_cnn(classes: int = 10) -> nn.Sequential:
    """T&B Table 9 without its second pooling, as in the authors' code: 187,210 parameters on 243×8×8 features."""
    return nn.Sequential(
        *(*_pooled_conv3(243, 64), *_conv3(64, 64)),
        *(nn.Flatten(), nn.Linear(1024, classes)),
    )


def lsr_cnn(classes: int = 10) -> nn.Sequential:
    """LSR's network for MNIST and Fashion-MNIST: 25,386 parameters on 1×28×28 images."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.MaxPool2d(2), nn.Tanh()),
        *(nn.Conv2d(16, 32, 4), nn.MaxPool2d(2), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, classes)),
    )


def lsr_small_cnn(classes: int = 10) -> nn.Sequential:
    """The network of LSR's Figure 1 (and of Wu et al. 2020): 11,330 parameters on 1×28×28 images."""
    return nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(10, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(160, 50), nn.ReLU(), nn.Linear(50, classes)),
    )


def tf_tutorial_cnn(classes: int = 10, norm: Norm = no_norm, side: int = 24) -> nn.Sequential:
    """The CNN of TensorFlow's tutorial on CIFAR-10 in SI: 1,068,298 parameters on 3×24×24 images.

    SI names it without describing it. Taken is the tutorial's network, two 5×5 convolutions of 64 channels and dense
    layers of 384 and 192, on the central 24×24 pixels, as Abadi et al. (2016) cut them. Assumed is a 2×2 pooling in the
    place of the tutorial's overlapping 3×3 one, and no local response normalisation; `side` 32 takes whole images.
    """
    if side < 4 or side % 4:
        raise ValueError(f"the side of the images must be a multiple of 4, not {side}")
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), norm(64), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), norm(64), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * (side // 4) ** 2, 384), nn.ReLU(), norm(384)),
        *(nn.Linear(384, 192), nn.ReLU(), norm(192), nn.Linear(192, classes)),
    )


def _pooled_conv3(inputs: int, outputs: int) -> tuple[nn.Conv2d, nn.MaxPool2d, nn.Tanh]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2), nn.Tanh()


def _conv3(inputs: int, outputs: int) -> tuple[nn.Conv2d, nn.Tanh]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.Tanh()
