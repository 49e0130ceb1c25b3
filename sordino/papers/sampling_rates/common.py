"""What tables and figures share: the trials of the nine settings."""

from collections.abc import Iterable
from typing import Any

from sordino.papers.recipe_trials import RecipeTrial, settings
from sordino.papers.trials import Experiment
from sordino.training import LARGE_RATES, Shifts

PAPER = "sampling-rates"
DELTA = 1e-5
TUNING = (
    "Settings are LSR's, from a search of theirs that is not counted, here as there; the weights are averaged over the "
    "last tenth of the steps, this library's default, chosen on held-out Fashion-MNIST records with other models "
    "(better-features, item choices)"
)
LONG = ("lsr-c2", "lsr-c3")
"""Trainings of 100 epochs, some six hours of one core each: a shorter one would say nothing about the paper's."""
SHORTFALL = f"no {' and '.join(LONG)}"


def settings_here(experiment: Experiment, names: Iterable[str]) -> list[str]:
    """Those of these settings that are trained: the longest only in full."""
    return [name for name in names if experiment.full or name not in LONG]


OURS: dict[str, dict[str, Any]] = {
    "lsr-m2": {"learning_rate": 3.6, "shifts": Shifts(views=1, most=1)},
    "lsr-m3": {"epochs": 60, "shifts": Shifts(views=2, most=1)},
}
"""Changes of our own where the paper's settings fell short of its accuracy when first trained: item choices."""


def words(changes: dict[str, Any]) -> str:
    """Changes to a setting, for a row of a table."""
    said = {what: value for what, value in changes.items() if what != "shifts"}
    shifts: Shifts | None = changes.get("shifts")
    moved = [] if shifts is None else [f"{shifts.views} moved view{'s' * (shifts.views > 1)}"]
    return ", ".join([*(f"{what.replace('_', ' ')} {value}" for what, value in said.items()), *moved])


def trained(experiment: Experiment, name: str, changes: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """One of the nine settings at the ε that the paper reports for it, measured on its way."""
    made = LARGE_RATES[name]
    changed = settings(**(changes or {}))
    return experiment.repeated(
        RecipeTrial(made.dataset, name, epsilon=made.epsilon, delta=DELTA, settings=changed, marks=10)
    )
