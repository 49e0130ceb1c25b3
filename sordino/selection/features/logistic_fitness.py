"""PAFS' fitness for a table with two classes: the noisy validation accuracy of private logistic regressions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Gaussian, Ledger, Repeated, calibration
from sordino.mechanisms import Stream, Streams, check_count_noise, noisy_counts
from sordino.selection.features.genetic import Fitness, Scores
from sordino.selection.features.merit import Mask
from sordino.selection.features.pafs import Trial
from sordino.training import GaussianObjective, LogisticPlan, data_norm, fit_many, least_tolerance, noise_ridge, scores

Vectors = NDArray[Any]


@dataclass(frozen=True)
class LogisticTrials:
    """How each subset is tried: an objective perturbation on the train part, a noisy count on the validation part."""

    plan: LogisticPlan
    score_noise: float
    """Standard deviation of the noise on the number of correct predictions, which one record moves by at most 1."""
    epsilon_of_one: float
    """Of one training alone, at the ledger's δ."""

    def __post_init__(self) -> None:
        check_count_noise(self.score_noise)

    @property
    def trial(self) -> Trial:
        return Trial(self.plan.event, Gaussian(self.score_noise))

    @classmethod
    def calibrated(
        cls, trials: int, n: int, attributes: int, width: int, ledger: Ledger, goal: float
    ) -> "LogisticTrials":
        """The least noise with which so many trials bring neither part of the ledger above the goal.

        n records to train on, of so many attributes that are `width` features when encoded.
        """
        ledger.refuse_add_remove()
        delta = ledger.terms.target_delta
        if delta is None:
            raise ValueError("trials are planned for a ledger with a target δ")
        adjacency = ledger.terms.adjacency

        def planned(sigma: float) -> LogisticPlan:
            noise = GaussianObjective(sigma)
            ridge = noise_ridge(noise, n, width)
            least = least_tolerance(n, width + 1, ridge, 10 * noise.expected_norm(width + 1))
            return LogisticPlan(data_norm(attributes), ridge, noise, max(1e-6, 4 * least), adjacency=adjacency)

        training = calibration.noise_multiplier(
            lambda sigma: Repeated(planned(sigma).event, trials), goal, delta, adjacency, ledger.epsilon_if
        )
        score = calibration.noise_multiplier(
            lambda sigma: Repeated(Gaussian(sigma), trials),
            goal,
            delta,
            adjacency,
            lambda event: ledger.epsilon_if(event, "validation"),
        )
        plan = planned(training)
        return cls(plan, score, plan.epsilon(delta))


def logistic_fitness(
    trials: LogisticTrials,
    train: tuple[Vectors, NDArray[np.integer]],
    validation: tuple[Vectors, NDArray[np.integer]],
    owners: NDArray[np.intp],
    streams: Streams | None = None,
) -> Fitness:
    """Masks → the share of correct predictions on the validation vectors, with noise, of models trained with noise.

    Guarantee: each subset is what `trials.trial` says; charging it is the search's business (`pafs`). Vectors are those
    of the one-hot encoding: a row of a subset that touches a attributes has norm at most √(a+1), the bias included, and
    the fit's noise is in units of that public norm. `owners` names each feature's attribute.
    """
    generator = (Streams.fresh() if streams is None else streams).generator(Stream.NOISE)
    x, y = train
    held, labels = validation
    if len(held) == 0:
        raise ValueError("scores need at least one validation record")
    belongs = owners[:, None] == np.unique(owners)

    def fitness(masks: Mask) -> Scores:
        touched = (masks.astype(np.int64) @ belongs.astype(np.int64) > 0).sum(axis=1)
        weights = fit_many(x, y, masks, trials.plan, 1, generator, np.sqrt(touched + 1.0))[:, 0]
        correct = ((scores(weights, held) > 0) == labels[:, None]).sum(axis=0)
        noisy = noisy_counts(generator, correct, trials.score_noise)
        return np.asarray(noisy / len(held))

    return fitness
