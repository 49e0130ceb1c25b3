"""One training with noisy weights and without privacy: its choices in a frozen value, its result kept under them."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino import models
from sordino.data import Split, load
from sordino.features import Feature, Pixels, WordVectors
from sordino.papers.trials import Result, Say, Trial
from sordino.training import NoisyTraining, train_noisy

_LEAST_RATE, _RATE = 1e-3, 0.1
WORD = 50
CIFAR = Pixels((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
"""By the usual public constants."""


@dataclass(frozen=True)
class Subject:
    """A network of SI's tables, built at a width, and what it is trained on."""

    dataset: str
    features: Feature
    build: Callable[[int], nn.Module]


def _mnist(build: Callable[..., nn.Module], norm: models.Norm) -> Subject:
    return Subject("mnist", Pixels(), lambda width: build(norm=norm))


def _cifar(build: Callable[..., nn.Module], **norms: models.Norm) -> Subject:
    return Subject("cifar-10", CIFAR, lambda width: build(norm=models.BatchNorm, width=width, **norms))


def _news(norm: models.Norm) -> Subject:
    return Subject("ag-news", WordVectors(20), lambda width: models.BiLSTMClassifier(WORD, score_norm=norm))


SUBJECTS = {
    "LeNet-300-100": _mnist(models.lenet_300_100, models.no_norm),
    "BN-LeNet-300-100": _mnist(models.lenet_300_100, models.BatchNorm),
    "LN-LeNet-300-100": _mnist(models.lenet_300_100, models.layer_norm),
    "LeNet-5": _mnist(models.lenet5, models.no_norm),
    "BN-LeNet-5": _mnist(models.lenet5, models.BatchNorm),
    "LN-LeNet-5": _mnist(models.lenet5, models.layer_norm),
    "ResNet-18": _cifar(models.resnet18),
    "ResNet-18-mod": _cifar(models.resnet18, last_norm=models.no_norm),
    "BN-ResNet-18": _cifar(models.resnet18, score_norm=models.BatchNorm),
    "VGG-16": _cifar(models.vgg16),
    "VGG-16-mod": _cifar(models.vgg16, last_norm=models.no_norm),
    "BN-VGG-16": _cifar(models.vgg16, score_norm=models.BatchNorm),
    "BiLSTM-DL": _news(models.no_norm),
    "LN-BiLSTM-DL": _news(models.layer_norm),
}


@dataclass(frozen=True)
class NoisyWeightsTrial(Trial):
    """A network trained at weights with noise of this deviation; a seed fixes all its randomness."""

    kind: ClassVar[str] = "noisy weights"

    subject: str
    deviation: float
    epochs: int
    batch: int = 32
    looks: int = 1
    seed: int = 0
    records: int | None = None
    """Train on the first so many records."""
    test: int | None = None
    width: int = 64
    """Channels of the first convolution of a ResNet or VGG: 64 in the paper."""

    @property
    def learning_rate(self) -> float:
        """Adam's 0.001, and in proportion to the noise where that is more.

        To count beside the noise a mean must grow to its size, and a network that does not mind the scale of its
        weights does not mind it in their steps either.
        """
        return max(_LEAST_RATE, _RATE * self.deviation)

    def description(self) -> dict[str, Any]:
        return super().description() | {
            "learning_rate": self.learning_rate,
            "rows": [len(part) for part in self._parts()],
        }

    def compute(self, folder: Path, say: Say) -> Result:
        subject = SUBJECTS[self.subject]
        say(f"{self}: features")
        counts = self.records, self.test
        train, test = (
            _examples(subject.features, part, count) for part, count in zip(self._parts(), counts, strict=True)
        )
        settings = NoisyTraining(
            self.deviation, self.epochs, self.batch, self.learning_rate, looks=self.looks, seed=self.seed
        )
        begun = time.process_time()
        looks = train_noisy(
            *(lambda: subject.build(self.width), train, test, settings),
            on_progress=lambda done: say(f"{self}: epoch {done:.1f} of {self.epochs}"),
        )
        curve = [{**asdict(look), "accuracy": look.sampled} for look in looks]
        return {
            "trial": str(self),
            **{name: curve[-1][name] for name in ("accuracy", "means", "loss")},
            "n": len(train[1]),
            "epochs": self.epochs,
            "batch": self.batch,
            "learning_rate": self.learning_rate,
            "seconds": time.process_time() - begun,
            "curve": curve,
        }

    def _parts(self) -> tuple[Split, Split]:
        dataset = _loaded(SUBJECTS[self.subject].dataset)
        return dataset.train, dataset.test

    def __str__(self) -> str:
        return f"{self.subject} at σ={self.deviation:g}, seed {self.seed}"


def _examples(features: Feature, split: Split, count: int | None) -> tuple[Tensor, NDArray[np.int64]]:
    return torch.as_tensor(features(split.x[:count])), split.y[:count]


_loaded = lru_cache(maxsize=2)(load)
