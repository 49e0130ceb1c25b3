"""What tables and figures share: the trials of the nine settings."""

from typing import Any

from sordino.papers.experiment import Experiment, settings
from sordino.papers.trials import Trial
from sordino.training.large_rates import LARGE_RATES

PAPER = "sampling-rates"
DELTA = 1e-5
TUNING = (
    "Settings are LSR's, from a search of theirs that is not counted, here as there; the weights are averaged over the "
    "last tenth of the steps, this library's default, chosen on held-out Fashion-MNIST records with other models "
    "(better-features, item choices)"
)
REDUCED = {"lsr-c2": 6, "lsr-c3": 6}
"""Epochs of the longest trainings where an hour is all there is."""
SHORTFALL = f"{', '.join(f'{epochs} epochs for {name}' for name, epochs in REDUCED.items())} in place of 100"

LONGER = {"lsr-m2": 100, "lsr-m3": 160, "lsr-f2": 120}
"""Epochs of our own where the paper's do not give its accuracy: item choices."""


def trained(experiment: Experiment, name: str, epochs: int | None = None) -> list[dict[str, Any]]:
    """One of the nine settings at the ε that the paper reports for it, measured on its way."""
    made = LARGE_RATES[name]
    if epochs is None:
        epochs = experiment.pick(REDUCED.get(name, made.epochs), made.epochs)
    changes = {} if epochs == made.epochs else {"epochs": epochs}
    return experiment.repeated(
        Trial(made.dataset, name, epsilon=made.epsilon, delta=DELTA, settings=settings(**changes), marks=10)
    )
