"""The trainings of SI's Tables 4 to 6.

The trainings are those that a user gets: `fit` under either plan, with a ledger on disk.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from sordino.budget import Event, Ledger
from sordino.data import Dataset, Split
from sordino.papers.trials import Result, Say, Trial, resumed_or_restarted
from sordino.papers.weight_distributions.networks import NETWORKS, Examples, NormedNetwork, examples_of, loaded
from sordino.runs import Run
from sordino.training import SGD, Averaging, Progress, TrainableModule, accuracy, fit

_AVERAGED = 0.1
"""The share of DP-SGD's steps, at the end, that its weights are averaged over."""


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
    validation: int = 0
    """Measure on so many training records after those of the plan: to choose settings, which is not counted."""
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
        test = examples_of(network.features, *self._examined(dataset))
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

    def _examined(self, dataset: Dataset) -> tuple[Split, int | None]:
        """The records to measure on, and how many of them."""
        n = self.plan.sampler.n
        if not self.validation:
            return dataset.test, self.test
        return Split(dataset.train.x[n:], dataset.train.y[n:]), self.validation

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
        held_out = f", {self.validation:,} held out" if self.validation else ""
        return f"{how} of {self.network} at {noise}={self.plan.noise_multiplier:.4g}{held_out}, seed {self.seed}"
