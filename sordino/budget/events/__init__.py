"""Descriptions of what was done to private data, a file a family; `sordino.events` for users.

    from sordino import events

    training = events.Repeated(events.PoissonGaussian(sample_rate=0.01, noise_multiplier=1.1), 1000)

Each event knows its JSON name, its words in the privacy statement, and how accountants price it. A new family is one
file with subclasses of `Event`; see there.
"""

from sordino.budget.events.base import (
    ADJACENCIES,
    Adjacency,
    Event,
    UnsupportedEvent,
    from_json,
    leaves,
    to_json,
)
from sordino.budget.events.composition import Composed, Except, NonPrivate, RepeatAndSelect, Repeated, composed
from sordino.budget.events.gaussian import FixedSizeGaussian, Gaussian, PoissonGaussian, ShuffledGaussian
from sordino.budget.events.iteration import Iteration
from sordino.budget.events.objective_perturbation import LogisticPerturbation
from sordino.budget.events.pure import Laplace, Pure

__all__ = [
    "ADJACENCIES",
    "Adjacency",
    "Composed",
    "Event",
    "Except",
    "FixedSizeGaussian",
    "Gaussian",
    "Iteration",
    "Laplace",
    "LogisticPerturbation",
    "NonPrivate",
    "PoissonGaussian",
    "Pure",
    "RepeatAndSelect",
    "Repeated",
    "ShuffledGaussian",
    "UnsupportedEvent",
    "composed",
    "from_json",
    "leaves",
    "to_json",
]
