"""What private computations cost: events, accountants, calibration, and the ledger. No training code in here."""

from sordino.budget.accountant import Cost, cost
from sordino.budget.events import (
    Composed,
    Event,
    Except,
    FixedSizeGaussian,
    Gaussian,
    Iteration,
    Laplace,
    LogisticPerturbation,
    NonPrivate,
    PoissonGaussian,
    Pure,
    RepeatAndSelect,
    Repeated,
    ShuffledGaussian,
    UnsupportedEvent,
)
from sordino.budget.ledger import BudgetExceeded, Ledger
from sordino.budget.ledger_file import LedgerError

__all__ = [
    "BudgetExceeded",
    "Composed",
    "Cost",
    "Event",
    "Except",
    "FixedSizeGaussian",
    "Gaussian",
    "Iteration",
    "Laplace",
    "Ledger",
    "LedgerError",
    "LogisticPerturbation",
    "NonPrivate",
    "PoissonGaussian",
    "Pure",
    "RepeatAndSelect",
    "Repeated",
    "ShuffledGaussian",
    "UnsupportedEvent",
    "cost",
]
