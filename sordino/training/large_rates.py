"""LSR's nine settings (Dörmann et al. 2021): large sampling rates, much noise, each found by a search at its own ε."""

from dataclasses import dataclass
from math import sqrt

from sordino.budget import steps_for


@dataclass(frozen=True)
class LargeRate:
    """A setting for one dataset, with the ε, noise and accuracy (in per cent) that the paper reports for it."""

    dataset: str
    n: int
    parameters: int
    sample_rate: float
    epochs: int
    learning_rate: float
    momentum: float
    l2_clip: float
    noise_multiplier: float
    epsilon: float
    accuracy: float

    @property
    def batch(self) -> int:
        return round(self.sample_rate * self.n)

    @property
    def steps(self) -> int:
        return steps_for(self.epochs, self.n, self.batch)

    @property
    def wander(self) -> float:
        """How far the noise of the whole run carries a weight (standard deviation): a random walk of all its steps."""
        step = self.learning_rate / (1 - self.momentum) * self.l2_clip * self.noise_multiplier / self.batch
        return step * sqrt(self.steps)


_MNIST, _FASHION, _CIFAR = ("mnist", 60_000, 25_386), ("fashion-mnist", 60_000, 25_386), ("cifar-10", 50_000, 550_570)
LARGE_RATES = {
    "lsr-m1": LargeRate(*_MNIST, 0.1427, 40, 6.939, 0.4253, 0.2901, 11.85, 0.98, 97.0),
    "lsr-m2": LargeRate(*_MNIST, 0.1427, 60, 1.798, 0.7161, 0.5757, 7.43, 1.95, 97.6),
    "lsr-m3": LargeRate(*_MNIST, 0.1665, 40, 10.244, 0.5784, 0.4196, 4.64, 2.93, 98.1),
    "lsr-f1": LargeRate(*_FASHION, 0.1427, 40, 4.069, 0.5764, 0.5716, 11.85, 0.97, 83.7),
    "lsr-f2": LargeRate(*_FASHION, 0.1665, 80, 5.706, 0.4277, 0.6457, 9.23, 1.79, 86.1),
    "lsr-f3": LargeRate(*_FASHION, 0.1665, 60, 9.493, 0.5946, 0.474, 6.06, 2.40, 86.8),
    "lsr-c1": LargeRate(*_CIFAR, 0.1666, 40, 1.601, 0.5992, 1.253, 6.61, 1.93, 58.6),
    "lsr-c2": LargeRate(*_CIFAR, 0.2, 100, 3.692, 0.6442, 0.6533, 4.83, 4.21, 66.2),
    "lsr-c3": LargeRate(*_CIFAR, 0.1666, 100, 7.101, 0.4433, 0.4434, 3.13, 7.42, 70.1),
}
"""Table 2, with what the paper leaves out from the authors' code."""

USUAL_SCALE = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3205,)),
    "cifar-10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}
"""Mean and deviation of each dataset's pixels, as everybody has published them: constants, not read off the data."""
