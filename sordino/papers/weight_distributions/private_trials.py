"""The networks of SI's Tables 4 to 6 and their trainings.

The trainings are those that a user gets: `fit` under either plan, with a ledger on disk.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sordino import models
from sordino.budget import Event, Ledger
from sordino.data import load
from sordino.features import Central, Feature, Pixels, WordVectors
from sordino.papers.trials import Result, Say, Trial, resumed_or_restarted
from sordino.papers.weight_distributions.noisy_weights import CIFAR, WORD, Examples, examples_of, loaded
from sordino.runs import Run
from sordino.training import (
    SGD,
    Averaging,
    MixingModule,
    Progress,
    TrainableModule,
    accuracy,
    cross_entropy,
    fit,
)

_AVERAGED = 0.1
"""The share of DP-SGD's steps, at the end, that its weights are averaged over."""
_PUBLIC = {"mnist": "kmnist", "cifar-10": "cifar-100"}


def public_images(dataset: str, features: Feature, count: int = 30) -> Tensor:
    """The public images that SI normalises this dataset's with, described as the private ones are.

    SI takes KMNIST's training images; where only its test images are at hand, those.
    """
    if dataset not in _PUBLIC:
        raise ValueError(f"SI has no public images beside {dataset}; it has them beside {' and '.join(_PUBLIC)}")
    public = load(_PUBLIC[dataset])
    images = (public.train if len(public.train) else public.test).x
    if not 1 <= count <= len(images):
        raise ValueError(f"from 1 to {len(images)} public images can be taken, not {count}")
    return torch.as_tensor(features(images[:count]))


@dataclass(frozen=True)
class NormedNetwork:
    """A network of Tables 4 to 6, built from a norm and a width, and what it is trained on."""

    dataset: str
    features: Feature
    build: Callable[[models.Norm, int], nn.Module]
    norm: models.Norm = models.no_norm
    among: type[models.AmongPublic] | None = None
    """How its batch norm sees public images beside the private ones, if it has one; then `norm` does not count."""

    @property
    def mixes(self) -> bool:
        """Whether examples see each other in training: then there is no privacy."""
        return self.among is models.BesidePublic

    def module(self, width: int) -> nn.Module:
        if self.among is None:
            return self.build(self.norm, width)
        public = public_images(self.dataset, self.features)
        return self.among(lambda norm: self.build(norm, width), public)

    def trainable(self, width: int) -> TrainableModule:
        return (MixingModule if self.mixes else TrainableModule)(lambda: self.module(width), cross_entropy)


AS_WRITTEN, APART = " by Algorithm 2", " with each example apart"
"""Batch norm over the batch and the public images, as SI has it; and over each example and the public images."""
_LENET = NormedNetwork("mnist", Pixels(), lambda norm, width: models.lenet5(norm=norm))
_NEWS = NormedNetwork("ag-news", WordVectors(20), lambda norm, width: models.BiLSTMClassifier(WORD, score_norm=norm))
_BATCH_NORMALISED = {
    "BN-LeNet-5": _LENET,
    "ResNet-18": NormedNetwork("cifar-10", CIFAR, lambda norm, width: models.resnet18(norm=norm, width=width)),
    "VGG-16": NormedNetwork("cifar-10", CIFAR, lambda norm, width: models.vgg16(norm=norm, width=width)),
    "Fast-CIFAR-ResNet": NormedNetwork(
        "cifar-10", CIFAR, lambda norm, width: models.fast_cifar_resnet(norm=norm, width=width)
    ),
}
NETWORKS = {
    "LeNet-5": _LENET,
    "LN-LeNet-5": replace(_LENET, norm=models.layer_norm),
    "TF-tutorial": NormedNetwork(
        "cifar-10", CIFAR >> Central(24), lambda norm, width: models.tf_tutorial_cnn(norm=norm)
    ),
    "BiLSTM-DL": _NEWS,
    "LN-BiLSTM-DL": replace(_NEWS, norm=models.layer_norm),
    **{
        f"{name}{way}": replace(network, among=kind)
        for name, network in _BATCH_NORMALISED.items()
        for way, kind in {AS_WRITTEN: models.BesidePublic, APART: models.AmongPublic}.items()
    },
}


@dataclass(frozen=True, kw_only=True)
class PrivateTrial(Trial):
    """A network trained on the first records of its dataset, as many as its plan is for; a seed fixes all of it.

    By weight distributions, also measured at the means, which SI's code does and nobody else may; or by DP-SGD, its
    weights averaged at the end.
    """

    kind: ClassVar[str] = "weight distributions"

    network: str
    seed: int = 0
    test: int | None = None
    width: int = 64
    """Channels of the first convolution of a ResNet or VGG: 64 in the paper."""
    budget: tuple[float, float] | None = None
    """The ε and δ that the ledger holds the training to; None where only a claim holds it."""
    delta: float = 1e-5
    plan: Any
    """A WeightDistributionPlan, or with an optimiser a Plan."""
    optimiser: SGD | None = None

    def description(self) -> dict[str, Any]:
        dataset = loaded(NETWORKS[self.network].dataset)
        rows = [len(dataset.train), len(dataset.test)]
        found = super().description() | {"plan": self.plan.to_json(), "rows": rows}
        if self.optimiser is None:
            return found
        rate, momentum = self.optimiser.learning_rate, self.optimiser.momentum
        return found | {"kind": "DP-SGD", "optimiser": {"learning_rate": rate, "momentum": momentum}}

    def compute(self, folder: Path, say: Say) -> Result:
        return resumed_or_restarted(folder, lambda run: self._result(NETWORKS[self.network], run, say))

    def _result(self, network: NormedNetwork, run: Run, say: Say) -> dict[str, Any]:
        say(f"{self}: features")
        dataset, plan = loaded(network.dataset), self.plan
        train = examples_of(network.features, dataset.train, plan.sampler.n)
        test = examples_of(network.features, dataset.test, self.test)
        model = network.trainable(self.width)
        ledger = self._ledger(run, plan.event)
        began = time.process_time()

        def on_progress(done: int, total: int) -> None:
            say(f"{self}: step {done:,} of {total:,}")

        more = self._fit(run, model, train, test, ledger, on_progress)
        found = accuracy(model.model, *test)
        charged = ledger.epsilon(self.delta)
        return {
            "trial": str(self),
            "accuracy": found,
            **more,
            "charged": charged if np.isfinite(charged) else None,  # None: no privacy at all
            "delta": self.delta,
            "plan": plan.to_json(),
            "n": len(train[1]),
            "seconds": time.process_time() - began,
        }

    def _ledger(self, run: Run, event: Event) -> Ledger:
        planned = [(event, "training", "train")]
        return Ledger(*(self.budget or ()), path=run.ledger, planned=planned)

    def _fit(
        self, run: Run, model: TrainableModule, train: Examples, test: Examples, ledger: Ledger, on_progress: Progress
    ) -> dict[str, Any]:
        """Train, and say what there is to say besides the accuracy of what is released, which the model has."""
        kept_means = run.folder / "means.json"

        @torch.no_grad()
        def measure(state: Any) -> None:
            if self.optimiser is None:
                for name, value in model.parameters.items():
                    value.copy_(state.means[name])
                run.write_json(kept_means.name, {"means": accuracy(model.model, *test)})

        horizon = _AVERAGED * self.plan.steps
        fit(
            self.plan,
            model,
            (train[0].numpy(), train[1]),
            optimiser=self.optimiser,
            ledger=ledger,
            run=run,
            averaging=Averaging(1 - 1 / horizon) if self.optimiser and horizon > 1 else None,
            what="training",
            seed=self.seed,
            on_progress=on_progress,
            on_trained=measure,
        )
        return dict(json.loads(kept_means.read_text(encoding="utf-8"))) if kept_means.exists() else {}

    def __str__(self) -> str:
        how, noise = ("weight distributions", "z") if self.optimiser is None else ("DP-SGD", "σ")
        return f"{how} of {self.network} at {noise}={self.plan.noise_multiplier:.4g}, seed {self.seed}"
