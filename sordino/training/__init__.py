"""Training under a plan: DP-SGD, run folders that survive a kill, recipes."""

from sordino.training.dpsgd import Momentum
from sordino.training.fitting import fit
from sordino.training.linear import LinearClassifier
from sordino.training.plan import Plan
from sordino.training.run import Run, RunError

__all__ = ["LinearClassifier", "Momentum", "Plan", "Run", "RunError", "fit"]
