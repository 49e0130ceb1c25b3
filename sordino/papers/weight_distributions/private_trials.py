"""One training of SI's Tables 4 to 6: a network and a plan in a frozen value, its result kept under them.

The trainings are those that a user gets: `fit_weight_distributions` and `fit`, each with a ledger on disk.
"""

import json
import time
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.budget import Event, Ledger
from sordino.data import Split, load
from sordino.features import Feature
from sordino.papers.trials import Result, Say, Trial, resumed_or_restarted
from sordino.papers.weight_distributions.networks import NETWORKS, Network
from sordino.runs import Run
from sordino.training import (
    SGD,
    Averaging,
    Means,
    ModuleTrainee,
    Plan,
    Progress,
    WeightDistributionPlan,
    accuracy,
    fit,
    fit_weight_distributions,
)

_AVERAGED = 0.1
"""The share of DP-SGD's steps, at the end, that its weights are averaged over."""
Examples = tuple[Tensor, NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class PrivateTrial(Trial):
    """A network trained on the first records of its dataset, as many as its plan is for; a seed fixes all of it."""

    network: str
    seed: int = 0
    test: int | None = None
    width: int = 64
    """Channels of the first convolution of a ResNet or VGG: 64 in the paper."""
    budget: tuple[float, float] | None = None
    """The ε and δ that the ledger holds the training to; None where only a claim holds it."""
    delta: float = 1e-5
    plan: Plan | WeightDistributionPlan

    @abstractmethod
    def _fit(
        self, run: Run, trainee: ModuleTrainee, test: Examples, ledger: Ledger, on_progress: Progress
    ) -> dict[str, Any]:
        """Train, and say what there is to say besides the accuracy of what is released, which the trainee holds."""

    def description(self) -> dict[str, Any]:
        dataset = _loaded(NETWORKS[self.network].dataset)
        rows = [len(dataset.train), len(dataset.test)]
        return super().description() | {"plan": self.plan.to_json(), "rows": rows}

    def compute(self, folder: Path, say: Say) -> Result:
        return resumed_or_restarted(folder, lambda run: self._result(NETWORKS[self.network], run, say))

    def _result(self, network: Network, run: Run, say: Say) -> dict[str, Any]:
        say(f"{self}: features")
        dataset, plan = _loaded(network.dataset), self.plan
        train = _examples(network.features, dataset.train, plan.sampler.n)
        test = _examples(network.features, dataset.test, self.test)
        trainee = network.trainee(self.width, train[0].numpy(), train[1])
        ledger = self._ledger(run, plan.event)
        begun = time.process_time()
        more = self._fit(run, trainee, test, ledger, lambda done, total: say(f"{self}: step {done:,} of {total:,}"))
        found = accuracy(trainee.model, *test)
        charged = ledger.epsilon(self.delta)
        return {
            "trial": str(self),
            "accuracy": found,
            **more,
            "charged": charged if np.isfinite(charged) else None,  # None: no privacy at all
            "delta": self.delta,
            "plan": plan.to_json(),
            "n": len(train[1]),
            "seconds": time.process_time() - begun,
        }

    def _ledger(self, run: Run, event: Event) -> Ledger:
        planned = [(event, "training", "train")]
        return Ledger(*(self.budget or ()), path=run.ledger, planned=planned)


@dataclass(frozen=True, kw_only=True)
class DistributionTrial(PrivateTrial):
    """Noise through weight distributions; also measured at the means, which SI's code does and nobody else may."""

    kind: ClassVar[str] = "weight distributions"
    plan: WeightDistributionPlan

    def __str__(self) -> str:
        return f"weight distributions of {self.network} at z={self.plan.noise_multiplier:.4g}, seed {self.seed}"

    def _fit(
        self, run: Run, trainee: ModuleTrainee, test: Examples, ledger: Ledger, on_progress: Progress
    ) -> dict[str, Any]:
        kept_means = run.folder / "means.json"

        @torch.no_grad()
        def measure(standing: Means) -> None:
            for name, value in trainee.parameters.items():
                value.copy_(standing.means[name])
            run.write_json(kept_means.name, {"means": accuracy(trainee.model, *test)})

        fit_weight_distributions(
            *(run, self.plan, trainee, ledger),
            what="training",
            seed=self.seed,
            on_progress=on_progress,
            on_trained=measure,
        )
        return dict(json.loads(kept_means.read_text(encoding="utf-8")))


@dataclass(frozen=True, kw_only=True)
class GradientTrial(PrivateTrial):
    """DP-SGD, with its weights averaged at the end."""

    kind: ClassVar[str] = "DP-SGD"
    plan: Plan
    optimiser: SGD

    def description(self) -> dict[str, Any]:
        rate, momentum = self.optimiser.learning_rate, self.optimiser.momentum
        return super().description() | {"optimiser": {"learning_rate": rate, "momentum": momentum}}

    def __str__(self) -> str:
        return f"DP-SGD of {self.network} at σ={self.plan.noise_multiplier:.4g}, seed {self.seed}"

    def _fit(
        self, run: Run, trainee: ModuleTrainee, test: Examples, ledger: Ledger, on_progress: Progress
    ) -> dict[str, Any]:
        horizon = _AVERAGED * self.plan.steps
        averaging = Averaging(1 - 1 / horizon) if horizon > 1 else None
        fit(
            *(run, self.plan, trainee, self.optimiser, ledger),
            averaging=averaging,
            seed=self.seed,
            on_progress=on_progress,
        )
        return {}


def _examples(features: Feature, split: Split, count: int | None) -> Examples:
    return torch.as_tensor(features(split.x[:count])), split.y[:count]


_loaded = lru_cache(maxsize=2)(load)
